-- steps.lua FOLDER [DEVICE] - train without end, on the CPU or that device; each rank writes its process's number to
-- FOLDER/RANK once it has made a step.

local gb = require "gibbous"
local nn, dist = gb.nn, gb.dist
dist.init()
local ddp = nn.parallel.DataParallel(nn.Linear(16, 16):to(arg[2] or "cpu"))
local opt = gb.optim.SGD(ddp.module:parameters(), { lr = 1e-3 })
for step = 1, math.huge do
  opt:zero_grad()
  for xs in ddp:shards(gb.ones(32, 16, { device = arg[2] or "cpu" })) do ddp(xs):square():mean():backward() end
  opt:step()
  if step == 1 then
    local stat = assert(io.open("/proc/self/stat")):read("a")
    local file = assert(io.open(arg[1] .. "/" .. dist.rank(), "w"))
    file:write(stat:match("^%d+"), "\n")
    file:close()
  end
end
