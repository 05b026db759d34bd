-- server.lua - what each tenant of the server is given: a low-rank update of a matrix that all tenants share (LoRA: Hu
-- et al. 2021).

local gb = require "gibbous"
local F = gb.nn.functional

-- base [in, out] is the host's and stays as it is; x [n, in] and y [n, out] are the tenant's. Returns the loss before
-- and after, and the update.
function finetune(base, x, y, steps)
  gb.manual_seed(1)
  local down = gb.randn(base:size(1), 2):mul_(0.1):requires_grad_()
  local up = gb.zeros(2, base:size(2)):requires_grad_()
  local opt = gb.optim.Adam({ down, up }, { lr = 0.02 })
  local function loss_of() return F.mse_loss(gb.matmul(x, base + gb.matmul(down, up)), y) end
  local before = loss_of():item()
  for _ = 1, steps do
    opt:zero_grad()
    loss_of():backward()
    opt:step()
  end
  return before, loss_of():item(), gb.matmul(down, up):detach()
end
