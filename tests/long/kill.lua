-- kill.lua - runs that are killed at random moments, and disks that refuse: what was saved is whole, and going on gives
-- the same bits.
--
--   gibbous tests/long/kill.lua KILLS [SEED]
--
-- A small model (dropout, shuffled loader, float16 scaling) trains in a process of its own and writes a checkpoint
-- after every step. The run that nobody kills keeps each of them: after a kill the checkpoint must have the very bytes
-- of the one of its step.

local STEPS = 24

-- {==== The run: gibbous kill.lua run FOLDER [KEEP | --go-on] ====

-- keep: a folder for a copy of every checkpoint. With --go-on a checkpoint that cannot be written is said, and the run
-- goes on.
local function train(folder, keep)
  local gb = require "gibbous"
  local nn, F, amp, optim, data = gb.nn, gb.nn.functional, gb.amp, gb.optim, gb.data
  gb.manual_seed(1)
  local precision = amp.precision("16-mixed")
  local model = nn.Sequential(nn.Linear(8, 16, { activation = "relu" }), nn.Dropout(0.25), nn.Linear(16, 4))
  local opt, scaler = optim.AdamW(model:parameters(), { lr = 1e-2 }), amp.GradScaler(precision)
  local labels = {}
  for i = 1, 60 do labels[i] = i % 4 end
  local loader = data.DataLoader(data.TensorDataset(gb.randn(60, 8), gb.tensor(labels)),
    { batch_size = 8, shuffle = true, seed = 3 })
  local parts = { model = model, optimizer = opt, scaler = scaler, loader = loader }
  local path, step = folder .. "/checkpoint.safetensors", 0
  local file = io.open(path)
  if file then
    file:close()
    step = gb.io.load_checkpoint(path, parts).step
  end
  while step < STEPS do
    for x, y in loader:iter() do
      opt:zero_grad()
      local loss = amp.autocast(precision, function() return F.cross_entropy(model(x), y) end)
      scaler:scale(loss):backward()
      scaler:step(opt)
      scaler:update()
      step = step + 1
      parts.extra = { step = step }
      if keep == "--go-on" then
        local saved, why = pcall(gb.io.save_checkpoint, path, parts)
        if not saved then print(("step %d is not saved: %s"):format(step, why)) end
      else gb.io.save_checkpoint(path, parts) end
      if keep and keep ~= "--go-on" then os.execute(("cp %s %s/%d"):format(path, keep, step)) end
      if step == STEPS then break end
    end
  end
  local sums = {}
  for i, p in ipairs(model:parameters()) do sums[i] = ("%a"):format(p:detach():double():sum():item()) end
  print("weights " .. table.concat(sums, " "))
end

if arg[1] == "run" then return train(arg[2], arg[3]) end

-- ====}

local gb = require "gibbous"
local KILLS, SEED = tonumber(arg[1]) or 5, math.tointeger(arg[2]) or os.time()
local gibbous = gb.test.program()
local passed, failed, skipped = 0, 0, 0

local function check(ok, text, ...)
  if ok then passed = passed + 1 return end
  failed = failed + 1
  print("FAILED  " .. text:format(...))
end

local function read(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local text = file:read("a")
  file:close()
  return text
end

-- Run a shell command; its exit status, 137 where a signal ended it as kill -9 does, and what it printed.
local function shell(text, ...)
  local pipe = assert(io.popen("{ " .. text:format(...) .. "; } 2>&1"))
  local output = pipe:read("a")
  local _, how, code = pipe:close()
  return how == "signal" and 128 + code or code, output
end

local folder = os.tmpname()
os.remove(folder)
local kept, work = folder .. "/kept", folder .. "/work"
local run = ("%s tests/long/kill.lua run"):format(gibbous)

local function seconds()
  local _, text = shell("date +%%s.%%N")
  return tonumber(text)
end

-- {==== Kills ====

-- The step of the checkpoint that is there, 0 where there is none; it is whole, and has the bytes that it should have.
local function check_checkpoint()
  local bytes = read(work .. "/checkpoint.safetensors")
  if not bytes then return 0 end
  local ok, why = pcall(function()
    local _, metadata = gb.load(work .. "/checkpoint.safetensors")
    return gb.io.json_decode(metadata.tree).extra.step
  end)
  check(ok, "the checkpoint cannot be read: %s", why)
  check(ok and bytes == read(kept .. "/" .. why), "the checkpoint of step %s has other bits", why)
  return ok and why or 0
end

local function kills()
  local start = seconds()
  local status, output = shell("%s %s", run, work)
  assert(status == 0, output)
  local whole = seconds() - start
  check(check_checkpoint() == STEPS, "the run does not end at step %d", STEPS)
  shell("rm -rf %s && mkdir %s", work, work)
  local killed, finished, moved, before = 0, 0, 0, 0
  while killed < KILLS do
    local moment = whole * (0.05 + 0.6 * math.random())
    status, output = shell("timeout -s KILL %.4f %s %s", moment, run, work)
    check(status == 0 or status == 137, "the run ended with %d: %s", status, output)
    if status ~= 0 and status ~= 137 then return end
    local step = check_checkpoint()
    check(step >= before, "the checkpoint went back from step %d to %d", before, step)
    moved, before = moved + (step > before and 1 or 0), step
    if status == 137 then killed = killed + 1
    else
      check(step == STEPS, "the run that was killed ends at step %d", step)
      finished = finished + 1
    end
    if step == STEPS then
      shell("rm -rf %s && mkdir %s", work, work)
      before = 0
    end
  end
  print(("%d kills, %d starts came further, %d runs came to their end"):format(killed, moved, finished))
end

-- ====}

-- {==== Disks: a small file system of our own, where the system lets us have one ====

local setup = [[unshare -rm sh -c '
  set -e
  mount -t tmpfs -o size=128k none %s
  cp %s/5 %s/checkpoint.safetensors
  %s
  status=0; %s %s %s || status=$?
  echo "status $status"
  cmp %s/5 %s/checkpoint.safetensors && echo intact
']]

-- A run on such a disk stops with an error that gives the reason, or says so at every step and goes on to the same end,
-- as the recipe asked; either way the old checkpoint stays as it was.
local function disk(name, before, reason, weights)
  local _, output = shell(setup, work, kept, work, before, run, work, "", kept, work)
  check(output:find("status 1\n", 1, true), "%s: the run did not stop with an error: %s", name, output)
  check(output:find(reason), "%s: the error does not say '%s': %s", name, reason, output)
  check(output:find("\nintact", 1, true), "%s: the old checkpoint has changed: %s", name, output)
  _, output = shell(setup, work, kept, work, before, run, work, "--go-on", kept, work)
  check(output:find("status 0\n", 1, true), "%s: the run did not go on: %s", name, output)
  local _, said = output:gsub("is not saved: [^\n]*" .. reason, "")
  check(said == STEPS - 5, "%s: %d of %d steps say that they are not saved: %s", name, said, STEPS - 5, output)
  check(output:find(weights, 1, true), "%s: the run that went on has other weights: %s", name, output)
  check(output:find("\nintact", 1, true), "%s: the old checkpoint has changed: %s", name, output)
end

local function disks(weights)
  if shell("unshare -rm mount -t tmpfs none %s", work) ~= 0 then
    skipped = skipped + 2
    print("skipped: no file system can be mounted here")
    return
  end
  disk("a full disk", ("dd if=/dev/zero of=%s/filler bs=1k status=none 2>/dev/null || true"):format(work),
    "No space left on device", weights)
  disk("a read-only disk", ("mount -o remount,ro %s"):format(work), "Read%-only file system", weights)
end

-- ====}

print(("%d kills, seed %d"):format(KILLS, SEED))
math.randomseed(SEED)
assert(shell("mkdir %s %s %s", folder, kept, work) == 0)
local ok, why = pcall(function()
  local status, output = shell("%s %s %s", run, work, kept)
  assert(status == 0, output)
  shell("rm -rf %s && mkdir %s", work, work)
  disks(output:match("weights [^\n]*"))
  kills()
end)
check(ok, "%s", why)
shell("rm -rf %s", folder)
print(("%d passed, %d failed, %d skipped"):format(passed, failed, skipped))
os.exit(failed == 0 and 0 or 1)
