-- memcheck.lua - one training step of each precision under valgrind: no value is used before it is set, no byte is
-- touched that is not ours, nothing is left.
--
--   gibbous tests/long/memcheck.lua       skipped (exit status 77) where there is no valgrind, and for programs that
--   have sanitizers in them

local gibbous = require("gibbous").test.program()

-- {==== The step: gibbous memcheck.lua run PRECISION ====

-- Convolution, norms, attention, embedding, dropout, recomputation, a loader that reads ahead; then a checkpoint there
-- and back.
local function train(precision)
  local gb = require "gibbous"
  local nn, F, amp, optim, data = gb.nn, gb.nn.functional, gb.amp, gb.optim, gb.data
  gb.manual_seed(1)
  precision = amp.precision(precision)
  local Net = nn.Module:extend("Net")
  function Net:init()
    self.conv = nn.Conv2d(1, 4, 3, { padding = 1, activation = "relu" })
    self.norm = nn.BatchNorm2d(4)
    self.embed = nn.Embedding(10, 16)
    self.attention = nn.MultiheadAttention(16, 2, { is_causal = true })
    self.layer_norm = nn.LayerNorm(16)
    self.block = nn.Sequential(nn.Linear(16, 32, { activation = "gelu" }), nn.Dropout(0.25), nn.Linear(32, 16))
    self.head = nn.Linear(16, 10)
  end
  function Net:forward(image, words)
    local h = F.max_pool2d(self.norm(self.conv(image)), 2):flatten(2)
    local x = self.embed(words) + h:reshape(h:size(1), 1, 16)
    x = self.layer_norm(x + self.attention(x))
    return self.head(x + gb.recompute(self.block, x))
  end
  local model = Net():to(precision)
  local opt, scaler = optim.AdamW(model:parameters(), { lr = 1e-2 }), amp.GradScaler(precision)
  local set = data.TensorDataset(gb.randn(12, 1, 4, 4), gb.arange(60):reshape(12, 5) % 10)
  local parts = { model = model, optimizer = opt, scaler = scaler,
    loader = data.DataLoader(set, { batch_size = 6, shuffle = true, prefetch = 2 }) }
  for image, words in parts.loader:iter() do
    opt:zero_grad()
    local loss = amp.autocast(precision, function() return F.cross_entropy(model(image, words):flatten(1, 2),
      words:flatten()) end)
    scaler:scale(loss):backward()
    scaler:step(opt, { clip = 1 })
    scaler:update()
    print(loss:item(), loss)
    break
  end
  local path = os.tmpname()
  gb.io.save_checkpoint(path, parts)
  gb.io.load_checkpoint(path, parts)
  os.remove(path)
end

if arg[1] == "run" then return train(arg[2]) end

-- ====}

-- Run a command; its exit status and what it printed.
local function shell(text, ...)
  local pipe = assert(io.popen("{ " .. text:format(...) .. "; } 2>&1"))
  local output = pipe:read("a")
  local _, _, code = pipe:close()
  return code, output
end

if shell("valgrind --version") ~= 0 or shell("nm -D %s | grep -q __asan_init", gibbous) == 0 then
  print("skipped: valgrind is not installed, or the program has sanitizers in it")
  print("0 passed, 0 failed, 1 skipped")
  os.exit(77)
end

local passed, failed = 0, 0
for _, precision in ipairs { "32-true", "16-mixed", "bf16-true" } do
  local code, output = shell("valgrind --quiet --error-exitcode=9 --leak-check=full \z
    --errors-for-leak-kinds=definite,indirect,possible %s --threads 2 tests/long/memcheck.lua run %s",
    gibbous, precision)
  if code == 0 and output:find("tensor(", 1, true) then passed = passed + 1
  else
    failed = failed + 1
    print(("FAILED  %s: exit status %d\n%s"):format(precision, code, output))
  end
end
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0)
