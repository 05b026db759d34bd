-- score.lua - gibbous tests/peers/score.lua WEIGHTS recipes/dcgan.lua [options]: what the recipe says of the digits of
-- another library's generator. It is handed over in the place of a checkpoint of the last epoch.

local gb = require "gibbous"
local weights, recipe = table.remove(arg, 1), table.remove(arg, 1)
function gb.io.load_checkpoint(path, parts)
  parts.generator:load_state_dict(gb.load(path), { strict = false })
  return { epoch = math.maxinteger - 1 }
end
for _, word in ipairs { "--resume", weights, "--score", "--out", "" } do arg[#arg + 1] = word end
rawset(arg, 0, recipe)
dofile(recipe)
