-- test_schedules.lua - schedules from a recipe's side: groups, parts, states, what is refused, and functions of the
-- recipe that fail or close the optimizer. (Their rates are compared with PyTorch's in test_training.lua.)

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, optim, lr = gb.nn, gb.optim, gb.optim.lr

local function parameter() return nn.Parameter(gb.zeros(1)) end

-- An optimizer with two groups.
local function two(options, kind)
  local groups = { { params = { parameter() }, lr = 0.5 }, { params = { parameter() }, lr = 0.25 } }
  return optim[kind or "SGD"](groups, options or { momentum = 0.9 })
end

local function expect_rates(schedule, a, b)
  local rates = schedule:get_last_lr()
  expect(rates[1]):to_be_near(a, 1e-12)
  expect(rates[2]):to_be_near(b, 1e-12)
end

describe("a schedule", function()
  it("starts from the initial lr, not from what another schedule made of it", function()
    local opt = two()
    lr.Constant(opt, { factor = 0.1 })
    expect(opt.param_groups[1].lr):to_be_near(0.05, 1e-12)
    expect_rates(lr.Exponential(opt, { gamma = 0.5 }), 0.5, 0.25)
  end)
  it("starts from a rate that was written by hand", function()
    local opt = two()
    lr.Constant(opt, { factor = 0.1 })
    opt.param_groups[1].lr = 4
    expect_rates(lr.Exponential(opt, { gamma = 0.5 }), 4, 0.25)
  end)
  it("starts from the initial lr that the optimizer's state has", function()
    local opt, other = two(), two()
    lr.Constant(opt, { factor = 0.1 })
    other.param_groups[1].lr = 3
    other:load_state_dict(opt:state_dict())
    expect(other.param_groups[1].lr):to_be_near(0.05, 1e-12)
    expect_rates(lr.Exponential(other, { gamma = 0.5, last_epoch = 0 }), 0.25, 0.125)
  end)
  it("gives a group that comes later its own rate", function()
    local opt = two()
    local function half() return 0.5 end
    for _, schedule in ipairs { lr.Exponential(opt, { gamma = 0.5 }), lr.Multiplicative(opt, { fn = half }) } do
      local n = #opt.param_groups
      opt:add_param_group { params = { parameter() }, lr = 8 }
      schedule:step()
      expect(schedule:get_last_lr()[n + 1]):to_be_near(4, 1e-12)
    end
    local listed = lr.OneCycle(opt, { max_lr = { 1, 2, 3, 4 }, total_steps = 9 })
    opt:add_param_group { params = { parameter() }, lr = 8 }
    expect(function() listed:step() end):to_fail("'max_lr' has 4 values, and the optimizer 5 groups")
    expect(listed.last_epoch):to_be(0)
  end)
  it("says its factor for any step and group", function()
    local opt = two()
    expect(lr.Lambda(opt, { fn = { function(t) return t end, function(t) return 2 * t end } }):factor(7, 2)):to_be(14)
    local step = lr.Step(opt, { step_size = 2, gamma = 0.5, warmup = 4 })
    expect(step:factor(1)):to_be(0.5)
    expect(step:factor(6)):to_be(0.5)
    expect(lr.CosineWarmRestarts(opt, { T_0 = 4 }):factor(2, 2)):to_be_near(0.5, 1e-12)
    expect(function() step:factor(-1) end):to_fail("a step from 0")
    expect(function() step:factor(1, 3) end):to_fail("there is no group 3")
    expect(function() lr.Multiplicative(opt, { fn = print }):factor(5) end):to_fail("only the rate at step 0")
    opt.param_groups[1].lr = 0
    expect(lr.Constant(opt):factor(3)):to_be(1)
    local cyclic = lr.Cyclic(opt, { base_lr = 0, max_lr = 1 })
    expect(function() cyclic:factor(3) end):to_fail("the initial lr of group 1 is 0")
  end)
  it("warms up to where it begins", function()
    local opt = two()
    local schedule = lr.Cyclic(opt, { base_lr = 0.4, max_lr = 0.8, step_size_up = 2, warmup = 2 })
    for _, rate in ipairs { 0.2, 0.4, 0.4, 0.6, 0.8 } do
      expect_rates(schedule, rate, rate)
      if schedule.last_epoch < 3 then expect(opt.param_groups[1].momentum):to_be_near(0.9, 1e-12) end
      schedule:step()
    end
  end)
  it("of the momentum changes the first of the betas, and no other", function()
    local opt = two({ betas = { 0.5, 0.75 } }, "Adam")
    lr.OneCycle(opt, { max_lr = 1, total_steps = 10 })
    expect(opt.param_groups[2].betas[1]):to_be(0.95)
    expect(opt.param_groups[2].betas[2]):to_be(0.75)
  end)
  it("trains with a momentum that was 0 before", function()
    local p = nn.Parameter(gb.ones(1))
    local opt = optim.SGD({ p }, { lr = 0.1 })
    local schedule = lr.OneCycle(opt, { max_lr = 1, total_steps = 4 })
    for _ = 1, 4 do
      opt:zero_grad()
      p:sum():backward()
      opt:step()
      schedule:step()
    end
    expect(p:item() < 0):to_be(true)
  end)
end)

describe("OneCycle", function()
  it("has as many steps as were said, and one step() after the last", function()
    local opt = two()
    local schedule = lr.OneCycle(opt, { max_lr = 1, total_steps = 5, anneal_strategy = "linear" })
    for _ = 1, 5 do schedule:step() end
    expect_rates(schedule, 4e-6, 4e-6)
    for _ = 1, 2 do
      expect(function() schedule:step() end):to_fail("step 6 is beyond total_steps = 5; give the number of all steps")
    end
    expect(schedule.last_epoch):to_be(5)
    local state = schedule:state_dict()
    state.count = 6
    expect(function() schedule:load_state_dict(state) end):to_fail("beyond total_steps")
    expect(schedule.last_epoch):to_be(5)
  end)
  it("takes any share for the way up", function()
    for _, share in ipairs { 0, 0.5, 1 } do
      for steps = 1, 4 do
        for _, three in ipairs { false, true } do
          local options = { max_lr = 1, total_steps = steps, pct_start = share, three_phase = three }
          local schedule = lr.OneCycle(two(), options)
          for _ = 1, steps do schedule:step() end
        end
      end
    end
  end)
end)

describe("ReduceOnPlateau", function()
  it("takes numbers and tensors, infinities too, and refuses NaN with all left as it was", function()
    local opt = two()
    local schedule = lr.ReduceOnPlateau(opt, { patience = 0, factor = 0.5 })
    schedule:step(gb.tensor(2.0))
    schedule:step(math.huge)
    expect_rates(schedule, 0.25, 0.125)
    local before = gb.io.json_encode(schedule:state_dict())
    expect(function() schedule:step(0 / 0) end):to_fail("the metric is")
    expect(function() schedule:step(gb.tensor(0 / 0)) end):to_fail("leave such an epoch out")
    expect(function() schedule:step() end):to_fail("the metric that ReduceOnPlateau goes by is missing; call \z
      schedule:step(loss)")
    expect(function() schedule:step("0.5") end):to_fail("'metric' must be a number or a tensor")
    expect(function() schedule:step(gb.zeros(2)) end):to_fail("item")
    expect(function() schedule:step(gb.tensor(true)) end):to_fail("the metric is true")
    expect(gb.io.json_encode(schedule:state_dict())):to_be(before)
  end)
  it("counts the steps of a warmup without looking at them", function()
    local schedule = lr.ReduceOnPlateau(two(), { patience = 0, factor = 0.5, warmup = 2 })
    expect_rates(schedule, 0.25, 0.125)
    schedule:step(1)
    schedule:step(2)
    expect_rates(schedule, 0.5, 0.25)
    schedule:step(3)
    schedule:step(4)
    expect_rates(schedule, 0.25, 0.125)
  end)
  it("goes through a checkpoint before and after its first metric", function()
    local path = os.tmpname()
    for metrics = 0, 3 do
      local opt, other = two(), two()
      local a, b = lr.ReduceOnPlateau(opt, { patience = 1 }), lr.ReduceOnPlateau(other, { patience = 1 })
      for i = 1, metrics do a:step(i) end
      gb.io.save_checkpoint(path, { schedule = a, optimizer = opt })
      gb.io.load_checkpoint(path, { schedule = b, optimizer = other })
      for i = 1, 4 do
        a:step(i)
        b:step(i)
        expect_rates(b, table.unpack(a:get_last_lr()))
      end
    end
    os.remove(path)
  end)
end)

describe("parts", function()
  local function parts(opt)
    return { lr.Constant(opt, { factor = 0.1 }), lr.ReduceOnPlateau(opt, { patience = 0, factor = 0.5 }) }
  end
  it("run one after the other, one with a metric too, and resume", function()
    local opt = two()
    local function make(o) return lr.Sequential(o, { schedules = parts(o), milestones = { 3 }, warmup = 2 }) end
    local schedule = make(opt)
    for _, rate in ipairs { 0.025, 0.05, 0.05, 0.05, 0.05, 0.5, 0.5, 0.25 } do
      expect_rates(schedule, rate, rate / 2)
      local other = two()
      local resumed = make(other)
      resumed:load_state_dict(schedule:state_dict())
      expect_rates(resumed, rate, rate / 2)
      schedule:step(1)
      resumed:step(1)
      expect_rates(resumed, table.unpack(schedule:get_last_lr()))
    end
  end)
  it("are inside each other", function()
    local opt = two()
    local first = lr.Constant(opt, { factor = 0.1, total_iters = 2 })
    local inner = lr.Chained(opt, { schedules = { first, lr.Exponential(opt, { gamma = 0.5 }) } })
    local schedule = lr.Sequential(opt, { schedules = { inner, lr.Step(opt, { step_size = 1 }) }, milestones = { 3 } })
    for _, rate in ipairs { 0.05, 0.025, 0.125, 0.5, 0.05 } do
      expect_rates(schedule, rate, rate / 2)
      local state = schedule:state_dict()
      schedule:step()
      local after = schedule:get_last_lr()
      schedule:load_state_dict(state)
      expect_rates(schedule, rate, rate / 2)
      schedule:step()
      expect_rates(schedule, table.unpack(after))
    end
    expect(inner.last_epoch):to_be(2)
  end)
  it("pass on the momentum", function()
    local opt = two()
    local a, b = lr.Constant(opt), lr.Cyclic(opt, { base_lr = 0.1, max_lr = 1, step_size_up = 1 })
    local schedule = lr.Sequential(opt, { schedules = { a, b }, milestones = { 1 } })
    schedule:step()
    schedule:step()
    expect(opt.param_groups[1].momentum):to_be_near(0.8, 1e-12)
    lr.Chained(opt, { schedules = { lr.Constant(opt), lr.Cyclic(opt, { base_lr = 0.1, max_lr = 1 }) } })
    expect(opt.param_groups[1].momentum):to_be_near(0.9, 1e-12)
  end)
  it("are no longer stepped by themselves", function()
    local opt = two()
    local a, b = lr.Constant(opt), lr.Constant(opt)
    local schedule = lr.Chained(opt, { schedules = { a, b } })
    expect(function() a:step() end):to_fail("a part of lr.Chained; step that one")
    expect(function() a:load_state_dict(a:state_dict()) end):to_fail("a part of lr.Chained; load that one")
    expect(function() lr.Chained(opt, { schedules = { a } }) end):to_fail("schedule 1 is a part of lr.Chained already")
    expect(function() schedule:step(1) end):to_fail("lr.Chained takes no metric")
  end)
  it("are of this optimizer, and make sense", function()
    local opt, other = two(), two()
    local a, b = lr.Constant(opt), lr.Constant(opt)
    local function with(schedules, milestones)
      return function() lr.Sequential(opt, { schedules = schedules, milestones = milestones }) end
    end
    expect(with({}, {})):to_fail("'schedules' is empty; give a list of schedules")
    expect(with({ a, a }, { 3 })):to_fail("schedules 1 and 2 are the same")
    expect(with({ a, lr.Constant(other) }, { 3 })):to_fail("schedule 2 is of another optimizer")
    expect(with({ a, 5 }, { 3 })):to_fail("must hold schedules of gb.optim.lr, but [2] is a number")
    expect(with({ a, b }, {})):to_fail("2 schedules need 1 milestones")
    expect(with({ a, b }, { 0 })):to_fail("whole numbers above 0 that rise, but [1] is 0")
    lr.Sequential(opt, { schedules = { a, b }, milestones = { 5 } }) -- what was refused has taken no part
  end)
end)

describe("refuses", function()
  local opt = two()
  local function wrong(kind, options, text)
    it(kind .. ": " .. text, function() expect(function() lr[kind](opt, options) end):to_fail(text) end)
  end
  wrong("Constant", { factor = -1 }, "lr.Constant: 'factor' must be a number from 0, got -1")
  wrong("Constant", { last_epoch = -2 },
    "'last_epoch' must be -1, or the number of the last step that happened, got -2")
  wrong("Constant", { last_epoch = math.maxinteger }, "'last_epoch' must be")
  wrong("Constant", { warmup = math.huge }, "'warmup' must be a number of steps from 0, got inf")
  wrong("Step", {}, "'step_size' is missing")
  wrong("Step", { step_size = -30 }, "'step_size' must be a number of steps above 0, got -30")
  wrong("Step", { step_size = 0 / 0 }, "'step_size' must be")
  wrong("Step", { step_size = 3, gamma = -1 }, "'gamma' must be a number from 0, got -1")
  wrong("MultiStep", { milestones = {} }, "'milestones' is empty; give the steps at which the rate changes")
  wrong("MultiStep", { milestones = { 30, 20 } }, "that rise, but [2] is 20 after 30")
  wrong("MultiStep", { milestones = { 1.5 } }, "but [1] is 1.5")
  wrong("MultiStep", { milestones = 30 }, "'milestones' must be a list, got 30")
  wrong("Exponential", { gamma = 0 / 0 }, "'gamma' must be")
  wrong("Polynomial", { total_iters = 0 }, "'total_iters' must be a number of steps above 0, got 0")
  wrong("Polynomial", { power = -1 }, "'power' must be a number from 0")
  wrong("InverseSqrt", { timescale = 0 }, "'timescale' must be")
  wrong("CosineWarmRestarts", { T_0 = 0 }, "'T_0' must be a whole number from 1, got 0")
  wrong("CosineWarmRestarts", { T_0 = 3, T_mult = 1.5 }, "'T_mult' must be a whole number from 1")
  wrong("CosineWarmRestarts", { T_0 = 3, eta_min = -1 }, "'eta_min' must be a rate from 0")
  wrong("CosineWarmRestarts", { t_0 = 3 }, "did you mean 'T_0'?")
  wrong("Lambda", { fn = { print } }, "'fn' has 1 functions, and the optimizer 2 groups")
  wrong("Lambda", { fn = { print, 3 } }, "'fn' must hold functions, but [2] is a number")
  wrong("Lambda", { fn = function() return "x" end }, "the factor is a number, got string")
  wrong("Lambda", { fn = function() return 0 / 0 end }, "the rate of group 1 at step 0 is")
  wrong("Lambda", { fn = function() return -1 end }, "it must be a number from 0")
  wrong("OneCycle", { max_lr = 1 }, "give total_steps, or epochs and steps_per_epoch")
  wrong("OneCycle", { max_lr = 1, epochs = 1 << 40, steps_per_epoch = 1 << 40 }, "can be counted")
  wrong("OneCycle", { max_lr = { 1 }, total_steps = 3 }, "'max_lr' has 1 values, and the optimizer 2 groups")
  wrong("OneCycle", { max_lr = { 1, -1 }, total_steps = 3 }, "'max_lr' must be a number from 0, got -1")
  wrong("OneCycle", { max_lr = 1, total_steps = 3, pct_start = 1.5 }, "'pct_start' must be from 0 to 1")
  wrong("OneCycle", { max_lr = 1, total_steps = 3, div_factor = 0 }, "'div_factor' must be a number above 0")
  wrong("OneCycle", { max_lr = 1, total_steps = 3, max_momentum = 1 }, "'max_momentum' must be a number from 0, \z
    below 1, got 1")
  wrong("Cyclic", { base_lr = 0.1, max_lr = { 1, "x" } }, "'max_lr' must be a number from 0, got x")
  wrong("Cyclic", { base_lr = 0.1, max_lr = 1, step_size_up = -1 }, "'step_size_up' must be a number of steps above 0")
  wrong("Cyclic", { base_lr = 0.1, max_lr = 1, mode = "square" }, "'mode' must be 'triangular', 'triangular2' or \z
    'exp_range'")
  wrong("Cyclic", { base_lr = 0.1, max_lr = 1, scale_fn = function() end }, "scale_fn gives a number, got nil")
  wrong("ReduceOnPlateau", { factor = 1 }, "'factor' must be from 0, below 1")
  wrong("ReduceOnPlateau", { patience = -1 }, "'patience' must be a whole number from 0")
  wrong("ReduceOnPlateau", { threshold = -1 }, "'threshold' must be a number from 0")
  wrong("ReduceOnPlateau", { min_lr = { 0, 0, 0 } }, "'min_lr' has 3 values, and the optimizer 2 groups")
  wrong("ReduceOnPlateau", { mode = "least" }, "'mode' must be 'min' or 'max'")
  wrong("SWA", { swa_lr = -0.1 }, "'swa_lr' must be a number from 0")
  it("leaves the rates as they were", function() expect_rates(lr.Constant(opt), 0.5, 0.25) end)

  it("states of another kind, and keeps its own", function()
    local plateau = lr.ReduceOnPlateau(opt)
    plateau:step(1)
    local before = gb.io.json_encode(plateau:state_dict())
    local function with(change)
      local state = plateau:state_dict()
      change(state)
      return function() plateau:load_state_dict(state) end
    end
    expect(with(function(s) s.state = nil end)):to_fail("has no numbers of lr.ReduceOnPlateau")
    expect(with(function(s) s.state.best = "x" end)):to_fail("best of the state is x")
    expect(with(function(s) s.state.best = 0 / 0 end)):to_fail("best of the state is")
    expect(with(function(s) s.state.rates = 5 end)):to_fail("rates of the state is no list")
    expect(with(function(s) s.state.rates = { 1 } end)):to_fail("rates of the state is nil")
    expect(with(function(s) s.state.rates[2] = -1 end)):to_fail("rates of the state is -1; it is a number from 0")
    expect(with(function(s) s.count = math.maxinteger end)):to_fail("no count of steps")
    expect(gb.io.json_encode(plateau:state_dict())):to_be(before)
    local chained = lr.Chained(opt, { schedules = { lr.Constant(opt), lr.Constant(opt) } })
    for _, parts in ipairs { 5, {}, { { count = 1 } }, { { count = 1 }, 7 }, { { count = 1 }, { count = "x" } } } do
      expect(function() chained:load_state_dict { count = 1, parts = parts } end):to_fail("schedule")
    end
    expect(chained.last_epoch):to_be(0)
  end)
end)

describe("a recipe that means harm", function()
  it("gives long lists, and steps far on", function()
    local opt, list = two(), {}
    for i = 1, 200000 do list[i] = i end
    local schedule = lr.MultiStep(opt, { milestones = list, gamma = 0.99 })
    schedule:load_state_dict { count = 199999 }
    schedule:step()
    expect(schedule:get_last_lr()[1] < 1e-300):to_be(true)
    for kind, options in pairs {
      CosineWarmRestarts = { T_0 = 1, T_mult = 2 }, Cyclic = { base_lr = 0.1, max_lr = 1 },
        Step = { step_size = 1e-300 },
      Polynomial = {}, Exponential = { gamma = 0.9 },
    } do
      local far = lr[kind](opt, options)
      far:load_state_dict { count = 1 << 53 }
      expect(function() far:load_state_dict { count = (1 << 53) + 1 } end):to_fail("no count of steps")
    end
    lr.CosineWarmRestarts(opt, { T_0 = math.maxinteger, T_mult = math.maxinteger }):step()
    expect(function() lr.Lambda(opt, { fn = list }) end):to_fail("'fn' has 200000 functions")
    expect(function() lr.Cyclic(opt, { base_lr = list, max_lr = 1 }) end):to_fail("'base_lr' has 200000 values")
    local nested = lr.Constant(opt)
    for _ = 1, 20 do nested = lr.Chained(opt, { schedules = { nested } }) end
    expect(function() lr.Chained(opt, { schedules = { nested } }) end):to_fail("within each other more than 20 deep")
    nested:step()
    nested:load_state_dict(nested:state_dict())
    expect_rates(nested, 0.5, 0.25)
  end)

  -- What a function of the recipe does at step 3, and what the error says.
  local ends = {
    ["fails"] = { function() error("boom", 0) end, "boom" },
    ["closes the optimizer"] = { function(opt) opt:close() return 1 end, "closed" },
    ["gives NaN"] = { function() return 0 / 0 end, "rate of group" },
    ["steps the schedule"] = { function(_, schedule) schedule:step() end, "stack overflow" },
  }
  for name, row in pairs(ends) do
    for kind, options in pairs {
      Lambda = function(fn) return { fn = { function() return 1 end, fn } } end,
      Multiplicative = function(fn) return { fn = { function() return 1 end, fn } } end,
      Cyclic = function(fn)
        return { base_lr = 0, max_lr = 1, step_size_up = 100, scale_fn = fn, scale_mode = "iterations" }
      end,
    } do
      it(("has a function of %s that %s"):format(kind, name), function()
        local opt, schedule = two()
        schedule = lr[kind](opt, options(function(t)
          if t == 3 then return row[1](opt, schedule) end
          return 1
        end))
        schedule:step()
        schedule:step()
        local rates = schedule:get_last_lr()
        local ok, why = pcall(schedule.step, schedule)
        expect(ok):to_be(false)
        local text = name == "gives NaN" and kind == "Cyclic" and "scale_fn" or row[2]
        expect(tostring(why):find(text, 1, true) ~= nil):to_be(true)
        expect(schedule.last_epoch):to_be(2)
        if name ~= "closes the optimizer" then expect_rates(schedule, table.unpack(rates)) end
      end)
    end
  end
  it("has functions that yield", function()
    local opt = two()
    local co = coroutine.wrap(function()
      local schedule = lr.Lambda(opt, { fn = function(t) coroutine.yield(t) return 0.5 end })
      schedule:step()
      return schedule
    end)
    for _, t in ipairs { 0, 0, 1, 1 } do expect(co()):to_be(t) end
    expect(co().last_epoch):to_be(1)
  end)
  it("closes the optimizer", function()
    local opt = two()
    local schedule = lr.Step(opt, { step_size = 1 })
    opt:close()
    expect(function() schedule:step() end):to_fail("closed")
    expect(function() schedule:get_last_lr() end):to_fail("closed")
    expect(function() schedule:load_state_dict(schedule:state_dict()) end):to_fail("closed")
    expect(schedule.last_epoch):to_be(0)
    expect(function() lr.Step(opt, { step_size = 1 }) end):to_fail("closed")
  end)
end)

gb.test.finish()
