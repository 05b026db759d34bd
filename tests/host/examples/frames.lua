-- frames.lua - what frames.c learns while it draws: how hard to throw a ball at a target, from throws that it
-- simulates.

local gb = require "gibbous"
local nn = gb.nn

local Aim = nn.Module:extend("Aim")
function Aim:init()
  self.inside = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
  self.force = nn.Linear(48, 1)
end
function Aim:forward(x) return self.force(self.inside(x)) end

-- Throws at random targets [distance, height], and the force that hits: v^2 = g d^2 / (2 cos^2 a (d tan a - h)) at an
-- angle of 60 degrees.
local function throws(n)
  local distance, height = gb.rand(n, 1):mul_(2):add_(1), gb.rand(n, 1)
  local square = distance * distance * (9.81 / (2 * 0.25)) / (distance * math.sqrt(3) - height)
  return gb.cat({ distance, height }, -1), square:sqrt()
end

-- Train up to `steps`; resume: go on from the checkpoint. A stop writes the checkpoint. Returns all weights as one
-- vector.
function train(steps, checkpoint, resume)
  gb.manual_seed(1)
  local model, step = Aim(), 0
  local opt = gb.optim.Adam(model:parameters(), { lr = 3e-3 })
  local parts = { model = model, optimizer = opt }
  if resume then step = gb.io.load_checkpoint(checkpoint, parts).step end
  gb.on_stop(function() gb.io.save_checkpoint(checkpoint,
    { model = model, optimizer = opt, extra = { step = step } }) end)
  local bar = gb.progress(steps, "aiming")
  bar:update(step)
  while step < steps do
    opt:zero_grad() -- here, between two steps, the stop comes in
    local x, y = throws(256)
    local loss = nn.functional.mse_loss(model(x), y)
    loss:backward()
    opt:step()
    step = step + 1
    bar:update(1, { loss = loss })
  end
  bar:close()
  local weights = {}
  for i, p in ipairs(model:parameters()) do weights[i] = p:detach():flatten() end
  return gb.cat(weights, 1)
end
