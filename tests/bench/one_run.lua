-- one_run.lua - one_run.lua SKIP THREADS [options]: runs recipes/char_gpt.lua as it is and prints "name <tab> seconds",
-- the median time of its steps after the first SKIP; with GIBBOUS_CLOCK=cpu that of the processor.

local gb = require "gibbous"

local skip = tonumber(table.remove(arg, 1))
gb.set_num_threads(tonumber(table.remove(arg, 1)))
local times, last, step = {}, nil, 0
local clock = os.getenv "GIBBOUS_CLOCK" == "cpu" and os.clock or gb.clock
function gb.progress()
  return {
    update = function()
      local now = clock()
      step = step + 1
      if last and step > skip then times[#times + 1] = now - last end
      last = now
    end,
    close = function() end,
  }
end
gb.plot = function() end

local precision
for i, word in ipairs(arg) do if word == "--precision" then precision = arg[i + 1] end end
local out = os.tmpname()
for _, word in ipairs { "--sample", "0", "--eval_batches", "1", "--out", out } do arg[#arg + 1] = word end
dofile("recipes/char_gpt.lua")
os.remove(out)
table.sort(times)
print(("char_gpt %s\t%.9f"):format(precision, times[(#times + 1) // 2]))
