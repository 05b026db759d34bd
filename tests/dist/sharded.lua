-- sharded.lua - optimizers whose states are shared out: the weights, and the states that they save, have the bits of
-- the whole optimizer, on every rank of every job, also where a run goes on from them.

local gb = require "gibbous"
local nn, F, dist, optim = gb.nn, gb.nn.functional, gb.dist, gb.optim
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
if not dist.is_initialized() then dist.init { timeout = 60 } end
local size = dist.world_size()

local function net()
  return nn.Sequential(nn.Linear(7, 33), nn.GELU(), nn.Linear(33, 65), nn.ReLU(), nn.Linear(65, 3))
end

local function expect_same(a, b)
  expect(type(a)):to_be(type(b))
  if gb.is_tensor(a) then expect(a:detach()):to_equal_bits(b:detach())
  elseif type(a) == "table" then
    for key, value in pairs(a) do expect_same(value, b[key]) end
    for key in pairs(b) do expect(a[key] ~= nil):to_be(true) end
  else expect(a):to_be(b) end
end

local makers = {
  SGD = { momentum = 0.9, lr = 0.05 }, AdamW = { lr = 0.01, amsgrad = true }, Adam = { lr = 0.01, weight_decay = 0.1 },
}

-- Some steps, with a skipped one where the loss is scaled; fn may take the optimizer's place.
local function train(kind, precision, steps, share, from)
  gb.manual_seed(7)
  local setting = gb.amp.precision(precision)
  local model = net():to(setting)
  local ddp = nn.parallel.DataParallel(model)
  local opt = optim[kind]({ { params = model[1]:parameters(), lr = 0.02 },
    { params = { model[3].weight, model[3].bias, model[5].weight, model[5].bias } } }, makers[kind])
  if from then
    model:load_state_dict(from.model)
    opt:load_state_dict(from.opt)
    gb.set_rng_state(table.unpack(from.rng))
  end
  if share then expect(optim.Sharded(opt) == opt):to_be(true) end
  local scaler = gb.amp.GradScaler(setting)
  for step = 1, steps do
    opt:zero_grad()
    for xs, ys in ddp:shards(gb.randn(16, 7), gb.randint(0, 3, { 16 })) do
      local loss = gb.amp.autocast(setting, function() return F.cross_entropy(ddp(xs):to("float32"), ys) end)
      if precision == "16-mixed" and step == 2 then loss = loss * 1e38 * 1e3 end
      scaler:scale(loss):backward()
    end
    if step % 2 == 0 then scaler:step(opt, { clip = 0.1 }) else scaler:step(opt) end
    scaler:update()
  end
  local state = { model = model:state_dict(), opt = opt:state_dict(), rng = { gb.get_rng_state() } }
  for name, t in pairs(state.model) do state.model[name] = t:clone() end
  opt:zero_grad()
  if share then opt:step() end -- goes on after it was saved
  opt:close()
  return state
end

describe("Sharded", function()
  for _, case in ipairs { { "SGD", "32-true" }, { "Adam", "bf16-mixed" }, { "AdamW", "bf16-true" },
    { "AdamW", "16-mixed" } } do
    it("has the bits of " .. table.concat(case, " in "), function()
      local whole = train(case[1], case[2], 4)
      expect_same(train(case[1], case[2], 4, true), whole)
    end)
  end

  it("goes on from a state, sharded or not", function()
    local half, whole = train("AdamW", "32-true", 2), train("AdamW", "32-true", 2)
    expect_same(half, whole)
    local on = train("AdamW", "32-true", 3, false, half)
    expect_same(train("AdamW", "32-true", 3, true, train("AdamW", "32-true", 2, true)), on)
  end)

  it("holds a part of the states", function()
    local layer = nn.Linear(512, 512)
    local opt = optim.Adam(layer:parameters())
    for _, p in ipairs(layer:parameters()) do p.grad = gb.ones(table.unpack(p.shape)) end
    opt:step()
    collectgarbage()
    local before = gb.memory_stats().current.optimizer
    optim.Sharded(opt)
    collectgarbage()
    if size > 1 then expect(gb.memory_stats().current.optimizer < before // size + 10000):to_be(true) end
    expect(function() if size > 1 then optim.Sharded(opt) else error("already") end end):to_fail("already")
  end)

  it("refuses what looks at whole parameters", function()
    local weight = nn.Linear(4, 4).weight
    expect(function() optim.Sharded(optim.Muon({ weight })) end):to_fail("works on whole matrices")
    weight = nn.Linear(4, 4).weight
    expect(function() optim.Sharded(optim.LAMB({ weight })) end):to_fail("norm of whole parameters")
    weight = nn.Linear(4, 4).weight
    expect(function() optim.Sharded(optim.LBFGS({ weight })) end):to_fail("LBFGS looks at all parameters")
  end)
end)

gb.test.finish()
