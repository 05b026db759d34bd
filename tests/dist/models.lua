-- models.lua - ranks whose models differ are told so.

local gb = require "gibbous"
local nn, dist = gb.nn, gb.dist
if not dist.is_initialized() then dist.init { timeout = 60 } end
gb.test.it("a rank with another model is named", function()
  if dist.world_size() == 1 then return end
  gb.test.expect(function() nn.parallel.DataParallel(nn.Linear(2, dist.rank() == 1 and 3 or 2)) end)
    :to_fail("the model of rank 1 is not that of rank 0")
end)
gb.test.finish()
