-- pointers.lua - a program that takes pointers to gradients on one rank alone: with gradients that are shared out it
-- gets none, so that no rank sends what the others do not expect. test_ranks gives take_pointer. And a gradient that is
-- shared out, which one rank alone writes by an op, and has to measure again: it is told that the others do not.

local gb = require "gibbous"
local nn, dist = gb.nn, gb.dist
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local rank, size = dist.rank(), dist.world_size()
local take_pointer = rawget(_G, "take_pointer")

-- Steps with a scaler and clipping; rank 1 asks for pointers at every turn. The weights, and whether it got any.
local function train(gradients, asks)
  gb.manual_seed(5)
  local model = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 6))
  local ddp = nn.parallel.DataParallel(model, { shards = 8 })
  local opt = gb.optim.Sharded(gb.optim.AdamW(model:parameters(), { lr = 0.01 }), { gradients = gradients })
  local scaler, got, why = gb.amp.GradScaler { init_scale = 8 }, true, nil
  local function ask()
    if not asks or rank ~= 1 then return end
    for _, p in ipairs(model:parameters()) do
      local one, text = take_pointer(p.grad)
      got, why = got and one, text
    end
  end
  for step = 1, 4 do
    opt:zero_grad()
    ddp:backward(function(xs)
      local loss = model(xs):square():mean()
      return scaler:scale(loss), loss
    end, gb.randn(16, 6))
    ask()
    if step > 2 then scaler:unscale_(opt) end
    ask()
    nn.utils.clip_grad_norm_(model:parameters(), 0.1)
    ask()
    scaler:step(opt)
    scaler:update()
  end
  local text = {}
  for _, p in ipairs(model:parameters()) do text[#text + 1] = gb.to_bytes(p:detach()) end
  return table.concat(text):gsub(".", function(c) return ("%02x"):format(c:byte()) end), got, why, model
end

local digest
describe("pointers to gradients", function()
  it("are not given where others have the rest, and nothing else changes", function()
    digest = train("parts", false)
    local again, got, why, model = train("parts", true)
    expect(again):to_be(digest)
    if rank ~= 1 then return end
    expect(got):to_be(false)
    expect(why:find("shared out.*gradients = 'whole'") ~= nil):to_be(true)
    collectgarbage() -- the optimizer goes
    collectgarbage()
    expect(take_pointer(model[1].weight.grad)):to_be(true)
  end)
  it("are given to gradients that are whole", function()
    local again, got = train("whole", true)
    expect(again):to_be(digest)
    expect(got):to_be(true)
  end)
  it("must not have been given before", function()
    if size == 1 then return end
    local layer = nn.Linear(2, 2)
    local opt = gb.optim.SGD(layer:parameters(), { lr = 0.1 })
    layer(gb.ones(1, 2)):sum():backward()
    expect(take_pointer(layer.weight.grad)):to_be(true)
    expect(function() gb.optim.Sharded(opt) end):to_fail("has had a pointer to a gradient")
    gb.optim.Sharded(opt, { gradients = "whole" })
  end)
end)

describe("a gradient that one rank alone writes", function()
  it("is an error, long before the timeout", function() -- the last one, since the job is over then
    if size ~= 2 then return end
    gb.manual_seed(5)
    local model = nn.Linear(6, 40)
    local ddp = nn.parallel.DataParallel(model, { shards = 8 })
    local opt = gb.optim.Sharded(gb.optim.AdamW(model:parameters(), { lr = 0.01 }))
    local function step(writes)
      opt:zero_grad()
      ddp:backward(function(xs) return model(xs):square():mean() end, gb.randn(16, 6))
      if writes then model.weight.grad:mul_(2) end
      nn.utils.clip_grad_norm_(model:parameters(), 0.1)
      opt:step()
    end
    step()
    step()
    local ok, why = pcall(step, rank == 1)
    expect(ok):to_be(false)
    expect((why:find("which waits for it in another call", 1, true) or why:find("rank %d is gone")) ~= nil):to_be(true)
  end)
end)

gb.test.finish()
return digest
