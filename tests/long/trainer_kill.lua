-- trainer_kill.lua - a Trainer that is killed at random moments, and one that is asked to stop by SIGTERM: what it
-- saved is whole, and going on gives the same bytes.
--
--   gibbous tests/long/trainer_kill.lua KILLS [SEED]
--
-- The run has dropout, a shuffled loader, accumulation, float16 scaling, an average and the two best checkpoints. In
-- the end the folder of a run that was killed again and again holds the very files of the run that was left alone.

-- {==== The run: gibbous trainer_kill.lua run FOLDER ====

local function train(folder)
  local gb = require "gibbous"
  local nn, F, data = gb.nn, gb.nn.functional, gb.data
  gb.manual_seed(1)
  local model = nn.Sequential(nn.Linear(8, 16, { activation = "relu" }), nn.Dropout(0.25), nn.Linear(16, 4))
  local function loader(n, seed)
    return data.DataLoader(data.TensorDataset(gb.randn(n, 8), gb.randint(0, 4, { n })),
      { batch_size = 4, shuffle = true, seed = seed })
  end
  local train_set, validation = loader(44, 3), loader(12, 4)
  local trainer = gb.Trainer { model = model, optimizer = { "AdamW", lr = 1e-2 }, loss = F.cross_entropy, epochs = 4,
    precision = "16-mixed", device = "cpu", accumulate = 2, clip = 1.0, schedule = { "Cosine", warmup = 0.2 },
    average = { mode = "ema", decay = 0.9 }, metrics = { "accuracy" }, validate_every = 3, resume = true,
    progress = false, checkpoint = { folder, every_steps = 1, keep = 2, monitor = "val_loss", name = "{step}" },
    on = { step = function(t) print("step " .. t.step) io.stdout:flush() end } }
  trainer:fit(train_set, validation)
  local sums = {}
  for i, p in ipairs(model:parameters()) do sums[i] = ("%a"):format(p:detach():double():sum():item()) end
  print("weights " .. table.concat(sums, " "))
end

if arg[1] == "run" then return train(arg[2]) end

-- ====}

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local kills, seed = tonumber(arg[1] or 5), tonumber(arg[2] or 1)
math.randomseed(seed)

local function shell(command)
  local pipe = assert(io.popen(command .. " 2>&1"))
  local text = pipe:read("a")
  pipe:close()
  return text
end

local program = ("'%s' tests/long/trainer_kill.lua"):format(gb.test.program())
local folder = os.tmpname()
os.remove(folder)
local whole = folder .. "/whole"

-- What differs between two folders of checkpoints, names and bytes.
local function difference(a, b) return shell(("diff -rq %s %s"):format(a, b)) end

local function weights(text) return text:match("weights [^\n]*") end

describe("a Trainer", function()
  os.execute("mkdir " .. folder)
  local said = shell(("%s run %s"):format(program, whole))
  local expected = weights(said)
  it("runs to its end when it is left alone", function()
    if not expected then error(said, 0) end
    expect(said:find("step 24", 1, true) ~= nil):to_be(true)
  end)
  local started = gb.clock()
  shell(("%s run %s/time"):format(program, folder))
  local seconds = gb.clock() - started

  it(("that is killed %d times leaves the same files and the same weights"):format(kills), function()
    local killed, runs = 0, 0
    while killed < kills do
      runs = runs + 1
      local place = ("%s/killed%d"):format(folder, runs)
      local text
      for _ = 1, 6 do -- a run is killed up to six times, then it is let be
        if killed >= kills then break end
        text = shell(("timeout -s KILL %.4f %s run %s"):format(0.01 + math.random() * seconds, program, place))
        if weights(text) then break end
        killed = killed + 1
      end
      if not weights(text or "") then text = shell(("%s run %s"):format(program, place)) end
      if not weights(text) then error(text, 0) end
      expect(weights(text)):to_be(expected)
      expect(shell(("rm -f %s/*.tmp"):format(place))):to_be("")
      expect(difference(whole, place)):to_be("")
      os.execute("rm -rf " .. place)
    end
  end)

  it("that has ended leaves its files as they are where it runs once more", function()
    local place = folder .. "/again"
    os.execute(("cp -r %s %s"):format(whole, place))
    expect(weights(shell(("%s run %s"):format(program, place)))):to_be(expected)
    expect(difference(whole, place)):to_be("")
  end)

  it("that gets a SIGTERM or a Ctrl-C saves at the next step, says how to go on, and goes on with the same bytes",
    function()
      for i, signal in ipairs { "TERM", "INT", "TERM", "TERM" } do
        local place, step = ("%s/asked%d"):format(folder, i), 2 + (i * 7) % 20
        local script = ([[mkfifo %s/pipe; %s run %s > %s/pipe 2>&1 & pid=$!
          while read line; do echo "$line"; [ "$line" = "step %d" ] && kill -%s $pid; done < %s/pipe; rm %s/pipe]])
          :format(folder, program, place, folder, step, signal, folder, folder)
        local text = shell(script)
        local stopped = tonumber(text:match("stopped after step (%d+)"))
        if not weights(text) then -- it was still running when the signal came
          expect(stopped ~= nil and stopped >= step):to_be(true)
          expect(text:find("run the same with resume = true to go on", 1, true) ~= nil):to_be(true)
          local last = shell(("%s run %s"):format(program, place))
          expect(weights(last)):to_be(expected)
          expect(last:find(("step %d\n"):format(stopped), 1, true)):to_be(nil)
        end
        expect(difference(whole, place)):to_be("")
      end
    end)
end)

describe("a recipe that did not ask to be told", function()
  local function ends(code)
    return shell(([['%s' -e "%s" & pid=$!; sleep 0.5; kill -TERM $pid; wait $pid; echo $?]])
      :format(gb.test.program(), code))
  end
  it("is ended by SIGTERM at once, as any program", function()
    expect(ends("while true do end"):match("143\n$")):to_be("143\n")
    expect(ends("pcall(function() while true do end end) print('went on')"):find("went on")):to_be(nil)
  end)
  it("and one that did is ended by the second", function()
    local said = shell(([['%s' -e "gb.on_stop(print) while true do end" & pid=$!; sleep 0.5; kill -TERM $pid
      sleep 0.2; kill -0 $pid && echo waits; kill -TERM $pid; wait $pid; echo $?]]):format(gb.test.program()))
    expect(said:match("^waits\n.*143\n$") ~= nil):to_be(true)
  end)
end)

os.execute("rm -rf " .. folder)
gb.test.finish()
