-- one_run.lua - runs recipes/char_gpt.lua as it is and prints the median time of its steps after the first `skip` (the first argument).

local gb = require "gibbous"

local skip = tonumber(table.remove(arg, 1))
local times, last, step = {}, nil, 0
function gb.progress()
  return {
    update = function()
      local now = gb.clock()
      step = step + 1
      if last and step > skip then times[#times + 1] = (now - last) * 1000 end
      last = now
    end,
    close = function() end,
  }
end
gb.plot = function() end

local out = os.tmpname()
for _, word in ipairs { "--sample", "0", "--eval_batches", "1", "--out", out } do arg[#arg + 1] = word end
dofile("recipes/char_gpt.lua")
os.remove(out)
table.sort(times)
print(("ms %.3f"):format(times[(#times + 1) // 2]))
