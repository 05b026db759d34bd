-- stream.lua - learns a linear sensor from windows of its samples: each row of a window is 16 inputs and the output
-- that was measured.

local gb = require "gibbous"

local model = gb.nn.Linear(16, 1)
local opt = gb.optim.Adam(model:parameters(), { lr = 0.02 })

-- One step on a window that the host lends; the window is not kept. Returns the loss.
function train(window)
  opt:zero_grad()
  local loss = gb.nn.functional.mse_loss(model(window:narrow(2, 1, 16)), window:narrow(2, 17, 1))
  loss:backward()
  opt:step()
  return loss:item()
end

-- The tensors themselves: what training writes, the host reads.
function weights() return model.weight, model.bias end

-- What a careless recipe does: it keeps the window for later.
local kept
function keep(window) kept = window end
function use_kept() return kept:sum():item() end
