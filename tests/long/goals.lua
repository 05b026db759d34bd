-- goals.lua - what training must reach, on real data: accuracy, validation loss, memory, and bits. Run by `./dev test
-- --long`.
--
--   GIBBOUS_DATA=FOLDER build/gibbous tests/long/goals.lua mnist | char_gpt | memory | bits
--
-- FOLDER holds mnist/ (the idx files) and tinyshakespeare/input.txt. Without it the goal is skipped (exit status 77),
-- never called passed. Training runs in processes of their own, through the recipes as users run them.

local gibbous = require("gibbous").test.program()
local folder = os.getenv("GIBBOUS_DATA")
local goal = arg[1]

if not folder then
  print("skipped: GIBBOUS_DATA names no folder with mnist/ and tinyshakespeare/")
  os.exit(77)
end

local passed, failed = 0, 0

local function check(ok, text, ...)
  print((ok and "ok      " or "FAILED  ") .. text:format(...))
  if ok then passed = passed + 1 else failed = failed + 1 end
end

-- Run a command and give its output.
local function run(text, ...)
  local command = text:format(...)
  local pipe = assert(io.popen(command .. " 2>&1"))
  local output = pipe:read("a")
  if not pipe:close() then error(command .. " failed:\n" .. output) end
  return output
end

local function mean(list)
  local sum = 0
  for _, x in ipairs(list) do sum = sum + x end
  return sum / #list
end

local function deviation(list)
  local m, sum = mean(list), 0
  for _, x in ipairs(list) do sum = sum + (x - m) ^ 2 end
  return math.sqrt(sum / math.max(#list - 1, 1))
end

local function temporary() return os.tmpname() end

local precisions = { "32-true", "16-mixed", "bf16-mixed" }

-- 8,000 / 2,000 images, 5 epochs: at least 98.0 % on average over 5 seeds; mixed within 0.2 points, or two standard
-- deviations.
local function mnist()
  local results = {}
  for _, precision in ipairs(precisions) do
    results[precision] = {}
    for seed = 1, 5 do
      local out = temporary()
      local output = run("%s recipes/mnist_cnn.lua --data %s/mnist --precision %s --seed %d --out %s", gibbous, folder,
        precision, seed, out)
      os.remove(out)
      local last
      for accuracy in output:gmatch("test accuracy ([%d%.]+)") do last = tonumber(accuracy) end
      results[precision][seed] = last
    end
    local list = results[precision]
    print(("mnist %-11s %s  mean %.2f  sd %.2f"):format(precision, table.concat(list, " "), mean(list),
      deviation(list)))
  end
  local control = results["32-true"]
  for _, precision in ipairs(precisions) do
    local m = mean(results[precision])
    check(m >= 98.0, "mnist %s: mean accuracy %.2f %% is at least 98.0", precision, m)
    local allowed = math.max(0.2, 2 * deviation(control))
    check(math.abs(m - mean(control)) <= allowed, "mnist %s: within %.2f points of 32-true", precision, allowed)
  end
end

-- nanoGPT's CPU setting: validation loss at most 1.91 in 32-true, mean of 3 seeds; mixed within two standard deviations
-- of it.
local function char_gpt()
  local results = {}
  for _, precision in ipairs(precisions) do
    results[precision] = {}
    for seed = 1, 3 do
      local out = temporary()
      local output = run("%s recipes/char_gpt.lua --data %s/tinyshakespeare/input.txt --precision %s --seed %d \z
        --sample 0 --out %s",
        gibbous, folder, precision, seed, out)
      os.remove(out)
      results[precision][seed] = tonumber(output:match("validation loss ([%d%.]+)"))
    end
    local list = results[precision]
    print(("char_gpt %-11s %s  mean %.4f  sd %.4f"):format(precision, table.concat(list, " "), mean(list),
      deviation(list)))
  end
  local control = results["32-true"]
  check(mean(control) <= 1.91, "char_gpt 32-true: mean validation loss %.4f is at most 1.91", mean(control))
  for _, precision in ipairs { "16-mixed", "bf16-mixed" } do
    local far = math.abs(mean(results[precision]) - mean(control))
    check(far <= 2 * deviation(control), "char_gpt %s: %.4f from 32-true, two standard deviations are %.4f", precision,
      far, 2 * deviation(control))
  end
end

-- Bytes by category at the peak of a step, and whether the peak is flat.
local function memory()
  local function measure(precision, steps)
    local output = run("%s tests/long/memory.lua --data %s/tinyshakespeare/input.txt --precision %s --steps %d",
      gibbous, folder, precision, steps)
    print(output)
    local function number(name) return tonumber(output:match(name .. " (%d+)")) end
    return number("saved"), number("peak"), number("early"), number("late")
  end
  local saved32, peak32 = measure("32-true", 60)
  local saved16, peak16, early, late = measure("bf16-mixed", 2000)
  check(saved16 <= 0.60 * saved32, "saved for backward, bf16-mixed against 32-true: %.3f is at most 0.60",
    saved16 / saved32)
  check(peak16 <= 0.70 * peak32, "the pool's peak, bf16-mixed against 32-true: %.3f is at most 0.70", peak16 / peak32)
  check(math.abs(late - early) <= 0.03 * early, "the peak in use between steps 200 and 2,000 moves by %.2f %%",
    100 * (late / early - 1))
end

-- The same seed gives the same bits: twice, with 1 and 2 threads, and through a stop and a resume.
local function bits()
  local function weights(options)
    local out = temporary()
    run("%s %s recipes/char_gpt.lua --data %s/tinyshakespeare/input.txt --sample 0 --eval_batches 1 --out %s %s",
      gibbous, options.threads or "", folder,
      out, options.text)
    local f = assert(io.open(out, "rb"))
    local text = f:read("a")
    f:close()
    os.remove(out)
    return text
  end
  local once = weights { text = "--steps 1000" }
  check(once == weights { text = "--steps 1000" }, "the same bits twice")
  check(once == weights { text = "--steps 1000", threads = "--threads 1" }, "the same bits with one thread")
  check(once == weights { text = "--steps 1000", threads = "--threads 2" }, "the same bits with two threads")
  local checkpoint = temporary()
  -- killed at step 700, with a checkpoint from there
  run("%s recipes/char_gpt.lua --data %s/tinyshakespeare/input.txt --sample 0 --steps 1000 --checkpoint %s \z
    --checkpoint_every 100 --stop_at 700",
    gibbous, folder, checkpoint)
  check(once == weights { text = "--steps 1000 --resume " .. checkpoint }, "the same bits after a stop at step 700 \z
    and a resume")
  os.remove(checkpoint)
end

local goals = { mnist = mnist, char_gpt = char_gpt, memory = memory, bits = bits }
if not goals[goal] then error("goals.lua: name one of mnist, char_gpt, memory, bits", 0) end
goals[goal]()
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0)
