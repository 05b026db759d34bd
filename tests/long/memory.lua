-- memory.lua - runs recipes/char_gpt.lua as it is and watches the pool at every step, through the recipe's own progress
-- bar.
--
-- Prints the bytes saved for backward and the peak of the pool in a late step, and the peak around step 200 and at the
-- end.

local gb = require "gibbous"

local steps = 200
for i = 1, #arg do
  if arg[i] == "--steps" then steps = tonumber(arg[i + 1]) end
end

local step, early, late, saved = 0, 0, 0, 0
function gb.progress()
  return {
    update = function()
      step = step + 1
      local stats = gb.memory_stats()
      if step == math.min(200, steps - 20) then early = stats.peak_total end
      late, saved = stats.peak_total, stats.peak.saved
      gb.reset_peak_memory_stats()
    end,
    close = function() end,
  }
end

local out = os.tmpname()
for _, word in ipairs { "--sample", "0", "--eval_batches", "1", "--out", out } do arg[#arg + 1] = word end
gb.plot = function() end
dofile("recipes/char_gpt.lua")
os.remove(out)
print(("saved %d peak %d early %d late %d"):format(saved, late, early, late))
