-- steps.lua - the time of one training step of recipes/char_gpt.lua in each precision: five alternating runs of 60 steps, the first 20 of each left
-- out, medians, and ratios to 32-true. Times on a shared machine are noisy; the ratios within one run are what counts.

local precisions = { "32-true", "bf16-mixed", "16-mixed" }
local runs, steps, skip = 5, 60, 20

local function median(list)
  table.sort(list)
  return list[(#list + 1) // 2]
end

-- Milliseconds per step, by the recipe's own loop in a process of its own.
local function measure(precision)
  local command = ("build/gibbous tests/bench/one_run.lua %d --data %s --precision %s --steps %d"):format(skip, arg[2], precision, steps)
  local pipe = assert(io.popen(command))
  local output = pipe:read("a")
  pipe:close()
  return tonumber(output:match("ms (%S+)"))
end

local times = {}
for _, precision in ipairs(precisions) do times[precision] = {} end
for _ = 1, runs do
  for _, precision in ipairs(precisions) do table.insert(times[precision], measure(precision)) end
end
local base = median(times["32-true"])
for _, precision in ipairs(precisions) do
  local m = median(times[precision])
  print(("char_gpt %-11s %7.2f ms a step   %.2f x 32-true"):format(precision, m, m / base))
end
