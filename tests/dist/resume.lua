-- resume.lua FROM TO PATH - train from step FROM to step TO in 16-mixed, from the checkpoint at PATH where FROM is
-- above 0, and write one there at TO; print a digest of the weights.

local gb = require "gibbous"
local nn, F, dist, digest = gb.nn, gb.nn.functional, gb.dist, dofile "tests/dist/digest.lua"
local from, to, path = tonumber(arg[1]), tonumber(arg[2]), arg[3]

dist.init { timeout = 60 }
gb.manual_seed(3)
local precision = gb.amp.precision("16-mixed")
local model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.BatchNorm1d(32), nn.Linear(32, 4))
local ddp = nn.parallel.DataParallel(model)
local opt, scaler = gb.optim.AdamW(model:parameters(), { lr = 0.01 }), gb.amp.GradScaler(precision)
local parts = { model = model, optimizer = opt, scaler = scaler }
if from > 0 then gb.io.load_checkpoint(path, parts) end
for step = from + 1, to do
  local x, y = gb.randn(29, 8), gb.randint(0, 4, { 29 })
  opt:zero_grad()
  for xs, ys in ddp:shards(x, y) do
    local loss = gb.amp.autocast(precision, function() return F.cross_entropy(ddp(xs), ys) end)
    if step % 7 == 0 then loss = loss * 1e38 * 1e3 end
    scaler:scale(loss):backward()
  end
  scaler:step(opt)
  scaler:update()
end
if dist.rank() == 0 then
  gb.io.save_checkpoint(path, parts)
  print(("%s after %d steps, scale %g"):format(digest(model), to, scaler:get_scale()))
end
dist.barrier()
