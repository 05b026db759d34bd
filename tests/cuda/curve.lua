-- curve.lua - curve.lua RECIPE OPTIONS: runs a recipe as it is and prints the loss of every step, a line each.

local gb = require "gibbous"

local recipe = table.remove(arg, 1)
function gb.progress()
  return {
    update = function(_, _, values)
      local loss = values.loss
      io.stderr:write(("%.9g\n"):format(gb.is_tensor(loss) and loss:item() or loss))
    end,
    close = function() end,
  }
end
gb.plot = function() end
dofile(recipe)
