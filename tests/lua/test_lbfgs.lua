-- test_lbfgs.lua - gb.optim.LBFGS beside PyTorch's (tests/golden/lbfgs.lua), its state, and what it refuses.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local LBFGS = gb.optim.LBFGS

-- Rosenbrock's function of three variables, and a closure for an optimizer of x.
local function rosenbrock(x)
  local a, b, c = x:select(1, 1), x:select(1, 2), x:select(1, 3)
  return (b - a * a):square() * 100 + (1 - a):square() + (c - b * b):square() * 100 + (1 - b):square()
end
local function closure_of(opt, x, sign)
  return function()
    opt:zero_grad()
    local loss = rosenbrock(x) * (sign or 1)
    loss:backward()
    return loss
  end
end
local function start() return gb.tensor({ -1.2, 1.0, 0.5 }, { dtype = "float64" }):requires_grad_() end

local function near(got, want, share)
  if not (math.abs(got - want) <= share * math.max(math.abs(want), 1e-3)) then
    error(("%.17g is not %.17g"):format(got, want), 2)
  end
end

describe("LBFGS goes as PyTorch's", function()
  for i, case in ipairs(dofile("tests/golden/lbfgs.lua")) do
    it("case " .. i, function()
      local x = start()
      local opt = LBFGS({ x }, case.options)
      local closure = closure_of(opt, x, case.options.maximize and -1)
      for _, want in ipairs(case.losses) do near(opt:step(closure):item(), want, 1e-4) end
      for k, want in ipairs(case.x) do near(x:detach():select(1, k):item(), want, 1e-5) end
      local state = opt:state_dict()
      expect(state.iterations):to_be(case.iterations)
      expect(state.evaluations):to_be(case.evaluations)
    end)
  end
end)

describe("LBFGS", function()
  it("fits a layer in a few steps, in float32", function()
    gb.manual_seed(5)
    local model, x = gb.nn.Linear(4, 2), gb.randn(50, 4)
    local y = x:matmul(gb.randn(4, 2)) + 0.5
    local opt = LBFGS(model:parameters(), { line_search_fn = "strong_wolfe" })
    local function closure()
      opt:zero_grad()
      local loss = gb.nn.functional.mse_loss(model(x), y)
      loss:backward()
      return loss
    end
    for _ = 1, 3 do opt:step(closure) end
    expect(closure():item() < 1e-8):to_be(true)
  end)
  it("goes on from its state", function()
    local results = {}
    for i = 1, 2 do
      local x = start()
      local opt = LBFGS({ x }, { line_search_fn = "strong_wolfe", max_iter = 3 })
      opt:step(closure_of(opt, x))
      if i == 2 then
        local other = LBFGS({ x }, { line_search_fn = "strong_wolfe", max_iter = 3 })
        other:load_state_dict(opt:state_dict())
        opt = other
      end
      opt:step(closure_of(opt, x))
      results[i] = x:detach():tolist()
    end
    for k = 1, 3 do expect(results[1][k]):to_be(results[2][k]) end
  end)
  it("changes nothing where the loss or the gradient is not finite", function()
    for _, bad in ipairs { math.huge, 0 / 0 } do
      local x = gb.ones(2):requires_grad_()
      local opt = LBFGS({ x })
      opt:step(function()
        opt:zero_grad()
        local loss = (x * bad):sum()
        loss:backward()
        return loss
      end)
      expect(x:detach():tolist()[1]):to_be(1)
      expect(opt:state_dict().iterations):to_be(0)
    end
  end)
  it("leaves parameters without a gradient where they are", function()
    local x, y = gb.ones(2):requires_grad_(), gb.ones(3):requires_grad_()
    local opt = LBFGS({ y, x })
    opt:step(function()
      opt:zero_grad()
      local loss = x:square():sum()
      loss:backward()
      return loss
    end)
    expect(y:detach():tolist()[1]):to_be(1)
    expect(math.abs(x:detach():tolist()[1]) < 1e-3):to_be(true)
  end)
  it("works after an error in its closure", function()
    local x = start()
    local opt = LBFGS({ x })
    expect(function() opt:step(function() error("not today") end) end):to_fail("not today")
    near(opt:step(closure_of(opt, x)):item(), 49.2, 1e-12)
  end)
  it("says what is wrong", function()
    local x = gb.ones(2):requires_grad_()
    local opt = LBFGS({ x })
    expect(function() opt:step() end):to_fail("closure")
    expect(function() opt:step(function() end) end):to_fail("the closure must return the loss")
    expect(function() opt:step(function() return x end) end):to_fail("a tensor of 2 elements")
    expect(function() opt:step(function() return opt:step(function() return 1 end) end) end):to_fail("calls step")
    expect(function() LBFGS({}) end):to_fail("empty")
    expect(function() LBFGS({ params = { x } }) end):to_fail("no groups")
    expect(function() LBFGS({ { params = { x } } }) end):to_fail("no groups")
    expect(function() LBFGS({ x, x }) end):to_fail("the same tensor")
    expect(function() LBFGS({ gb.ones(2):half() }) end):to_fail("parameter 1 is float16")
    expect(function() LBFGS({ x }, { max_iter = 0 }) end):to_fail("'max_iter' is 0")
    expect(function() LBFGS({ x }, { lr = 0 / 0 }) end):to_fail("'lr' is")
    expect(function() LBFGS({ x }, { line_search_fn = "armijo" }) end):to_fail("strong_wolfe")
    expect(function() opt:load_state_dict({}) end):to_fail("load_state_dict")
    local state = opt:state_dict()
    state.iterations = 1
    expect(function() opt:load_state_dict(state) end):to_fail("no number")
  end)
  it("is refused by a GradScaler, which says why", function()
    local scaler, opt = gb.amp.GradScaler(), LBFGS({ gb.ones(2):requires_grad_() })
    expect(function() scaler:step(opt) end):to_fail("LBFGS takes no GradScaler")
    expect(function() scaler:unscale_(opt) end):to_fail("LBFGS takes no GradScaler")
  end)
end)

gb.test.finish()
