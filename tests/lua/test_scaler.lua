-- test_scaler.lua - the gradient scaler: stages, errors, state, tags, the report, and the five documented patterns,
-- each against an unscaled control. Scales are powers of two, so scaled runs in float32 give the control's bits.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local amp, nn, F, optim = gb.amp, gb.nn, gb.nn.functional, gb.optim

-- A small net with fixed weights, and data.
local function make(seed)
  gb.manual_seed(seed or 5)
  local net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
  return net, gb.randn(32, 8), gb.randn(32, 4)
end

local function same(a, b)
  local other = {}
  for name, p in b:named_parameters() do other[name] = p end
  for name, p in a:named_parameters() do expect(p:detach()):to_equal_bits(other[name]:detach()) end
end

local function train(pattern, enabled)
  local net, x, y = make()
  local opt = optim.SGD(net:parameters(), { lr = 0.05, momentum = 0.9 })
  local scaler = amp.GradScaler { enabled = enabled, init_scale = 1024, growth_interval = 3 }
  for step = 1, 8 do pattern(net, opt, scaler, x, y, step) end
  return net, scaler
end

local function against_control(pattern)
  local scaled = train(pattern, true)
  local control = train(pattern, false)
  same(scaled, control)
end

describe("patterns", function()
  it("plain", function()
    against_control(function(net, opt, scaler, x, y)
      opt:zero_grad()
      scaler:scale(F.mse_loss(net(x), y)):backward()
      scaler:step(opt)
      scaler:update()
    end)
  end)
  it("clip", function()
    against_control(function(net, opt, scaler, x, y)
      opt:zero_grad()
      scaler:scale(F.mse_loss(net(x), y)):backward()
      scaler:unscale_(opt)
      nn.utils.clip_grad_norm_(net:parameters(), 0.1)
      scaler:step(opt)
      scaler:update()
    end)
  end)
  it("clip scaled gradients: they are measured at their true size", function()
    against_control(function(net, opt, scaler, x, y)
      opt:zero_grad()
      scaler:scale(F.mse_loss(net(x), y)):backward()
      nn.utils.clip_grad_value_(net:parameters(), 0.01)
      scaler:step(opt)
      scaler:update()
    end)
  end)
  it("accumulate", function()
    against_control(function(net, opt, scaler, x, y, step)
      if step % 2 == 1 then opt:zero_grad() end
      scaler:scale(F.mse_loss(net(x), y) / 2):backward()
      if step % 2 == 0 then
        scaler:step(opt)
        scaler:update()
      end
    end)
  end)
  it("penalty", function()
    against_control(function(net, opt, scaler, x, y)
      opt:zero_grad()
      local input = x:clone():requires_grad_()
      local loss = F.mse_loss(net(input), y)
      local g = gb.grad(scaler:scale(loss), { input }, { create_graph = true })[1] * (1 / scaler:get_scale())
      local total = loss + g:square():sum()
      scaler:scale(total):backward()
      scaler:step(opt)
      scaler:update()
    end)
  end)
  it("penalty by amp.grad", function()
    against_control(function(net, opt, scaler, x, y)
      opt:zero_grad()
      local input = x:clone():requires_grad_()
      local loss = F.mse_loss(net(input), y)
      local g = amp.grad(loss, { input }, { create_graph = true, scaler = scaler })[1]
      scaler:scale(loss + g:square():sum()):backward()
      scaler:step(opt)
      scaler:update()
    end)
  end)
  it("several losses", function()
    against_control(function(net, opt, scaler, x, y)
      opt:zero_grad()
      local out = net(x)
      scaler:scale(F.mse_loss(out, y)):backward(nil, { retain_graph = true })
      scaler:scale(F.l1_loss(out, y)):backward()
      scaler:step(opt)
      scaler:update()
    end)
  end)
  it("several optimizers: each decides its own step, any overflow backs the scale off", function()
    local function run(enabled, poison)
      local a, x, y = make(5)
      local b = make(6)
      local first, second = optim.SGD(a:parameters(), { lr = 0.05 }), optim.Adam(b:parameters(), { lr = 0.01 })
      local scaler = amp.GradScaler { enabled = enabled, init_scale = 1024 }
      for step = 1, 4 do
        first:zero_grad()
        second:zero_grad()
        local loss = F.mse_loss(a(x), y) + F.mse_loss(b(x), y)
        if poison and step == 2 then loss = loss + (b[1].bias * math.huge):sum() end
        scaler:scale(loss):backward()
        scaler:step(first)
        scaler:step(second)
        scaler:update()
      end
      return a, b, scaler
    end
    local a, b, scaler = run(true)
    local ca, cb = run(false)
    same(a, ca)
    same(b, cb)
    expect(scaler:get_scale()):to_be(1024.0)
    local pa, pb, poisoned = run(true, true)
    expect(poisoned:get_scale()):to_be(512.0)
    same(pa, ca) -- the first optimizer saw no overflow
    for _, p in ipairs(pb:parameters()) do expect(p:isfinite():all():item()):to_be(true) end
  end)
end)

describe("overflow", function()
  local function step_with(net, opt, scaler, x, y, factor)
    opt:zero_grad()
    local loss = F.mse_loss(net(x), y)
    if factor then loss = loss + (net[3].weight * factor):sum() end
    scaler:scale(loss):backward()
    scaler:step(opt)
    scaler:update()
  end
  it("skips the step, halves the scale, names the parameters", function()
    local net, x, y = make()
    local opt = optim.AdamW(net:parameters(), { lr = 0.01 })
    local scaler = amp.GradScaler { init_scale = 1024 }
    step_with(net, opt, scaler, x, y)
    local before = net[1].weight:detach():clone()
    step_with(net, opt, scaler, x, y, math.huge)
    expect(net[1].weight:detach()):to_equal_bits(before)
    expect(scaler:get_scale()):to_be(512.0)
    local stats = scaler:stats()
    expect(stats.steps):to_be(1)
    expect(stats.skipped):to_be(1)
    expect(stats.last_skipped):to_be(true)
    expect(scaler:report():find("2.weight", 1, true) ~= nil):to_be(true)
    expect(scaler:report():find("0.weight", 1, true)):to_be(nil)
  end)
  it("a NaN is one too, in any gradient", function()
    for which = 1, 4 do
      local net, x, y = make()
      local parameters = net:parameters()
      local opt = optim.SGD(parameters, { lr = 0.1 })
      local scaler = amp.GradScaler { init_scale = 8 }
      opt:zero_grad()
      scaler:scale(F.mse_loss(net(x), y) + (parameters[which] * (0 / 0)):sum()):backward()
      local before = parameters[which]:detach():clone()
      scaler:step(opt)
      scaler:update()
      expect(parameters[which]:detach()):to_equal_bits(before)
      expect(scaler:get_scale()):to_be(4.0)
    end
  end)
  it("stops at min_scale and never reaches 0", function()
    local net, x, y = make()
    local opt = optim.SGD(net:parameters(), { lr = 0.1 })
    local scaler = amp.GradScaler { init_scale = 1, max_skips = 0 }
    for _ = 1, 40 do step_with(net, opt, scaler, x, y, math.huge) end
    expect(scaler:get_scale()):to_be(2.0 ^ -14)
    for _, p in ipairs(net:parameters()) do expect(p:isfinite():all():item()):to_be(true) end
  end)
  it("too many skips in a row are an error that carries the report", function()
    local net, x, y = make()
    local opt = optim.SGD(net:parameters(), { lr = 0.1 })
    local scaler = amp.GradScaler { max_skips = 5 }
    expect(function()
      for _ = 1, 10 do step_with(net, opt, scaler, x, y, math.huge) end
    end):to_fail("2.weight")
  end)
  it("the scale grows and stops at max_scale", function()
    local net, x, y = make()
    local opt = optim.SGD(net:parameters(), { lr = 0.01 })
    local scaler = amp.GradScaler { init_scale = 4, growth_interval = 1, max_scale = 16 }
    for _ = 1, 4 do step_with(net, opt, scaler, x, y) end
    expect(scaler:get_scale()):to_be(16.0)
  end)
  it("a static scale stays, and still skips", function()
    local net, x, y = make()
    local opt = optim.SGD(net:parameters(), { lr = 0.01 })
    local scaler = amp.GradScaler { scale = 128 }
    step_with(net, opt, scaler, x, y, math.huge)
    step_with(net, opt, scaler, x, y)
    expect(scaler:get_scale()):to_be(128.0)
    expect(scaler:stats().skipped):to_be(1)
  end)
  it("in float16 a loss that overflows at the start finds its scale", function()
    local net, x, y = make()
    local opt = optim.SGD(net:parameters(), { lr = 0.01 })
    local scaler = amp.GradScaler { init_scale = 2 ^ 24 }
    for _ = 1, 30 do
      opt:zero_grad()
      local loss = amp.autocast({ dtype = "float16" }, function() return F.mse_loss(net(x), y) end)
      scaler:scale(loss):backward()
      scaler:step(opt)
      scaler:update()
    end
    local stats = scaler:stats()
    expect(stats.skipped > 0):to_be(true)
    expect(stats.steps > 10):to_be(true)
  end)
end)

describe("order of calls", function()
  local function ready()
    local net, x, y = make()
    local opt = optim.SGD(net:parameters(), { lr = 0.01 })
    local scaler = amp.GradScaler()
    scaler:scale(F.mse_loss(net(x), y)):backward()
    return net, opt, scaler, x, y
  end
  it("unscale_ twice", function()
    local _, opt, scaler = ready()
    scaler:unscale_(opt)
    expect(function() scaler:unscale_(opt) end):to_fail("unscale_")
  end)
  it("unscale_ after step, step twice", function()
    local _, opt, scaler = ready()
    scaler:step(opt)
    expect(function() scaler:unscale_(opt) end):to_fail("step")
    expect(function() scaler:step(opt) end):to_fail("update")
  end)
  it("update without a step", function()
    expect(function() amp.GradScaler():update() end):to_fail("update")
  end)
  it("step without a gradient says why", function()
    local net = make()
    local opt = optim.SGD(net:parameters(), { lr = 0.01 })
    expect(function() amp.GradScaler():step(opt) end):to_fail("gradient")
  end)
  it("backward without scale is noticed", function()
    local net, x, y = make()
    local opt = optim.SGD(net:parameters(), { lr = 0.01 })
    local scaler = amp.GradScaler()
    F.mse_loss(net(x), y):backward()
    expect(function() scaler:step(opt) end):to_fail("scale")
  end)
  -- Whatever uses such a sum refuses it; zeroed, the gradients are as new.
  local function refuses(net, opt, scaler, what)
    expect(function() nn.utils.clip_grad_norm_(net:parameters(), 1) end):to_fail(what)
    expect(function() nn.utils.clip_grad_value_(net:parameters(), 1) end):to_fail(what)
    expect(function() nn.utils.clip_grads_with_norm_(net:parameters(), 1, 2) end):to_fail(what)
    expect(function() nn.utils.get_total_norm({ net:parameters()[1].grad }) end):to_fail(what)
    expect(function() scaler:unscale_(opt) end):to_fail(what)
    expect(function() scaler:step(opt) end):to_fail(what)
    expect(function() opt:step() end):to_fail(what)
    opt:zero_grad()
  end
  it("a sum of scaled and unscaled gradients is refused", function()
    local net, opt, scaler, x, y = ready()
    F.mse_loss(net(x), y):backward()
    refuses(net, opt, scaler, "a scaled and an unscaled loss")
    scaler:scale(F.mse_loss(net(x), y)):backward()
    scaler:step(opt)
  end)
  it("a sum of gradients from before and after an update is refused", function()
    local net, opt, scaler, x, y = ready()
    scaler:step(opt)
    scaler:update()
    scaler:scale(F.mse_loss(net(x), y)):backward()
    scaler:scale(F.mse_loss(net(x), y)):backward() -- which it stays
    refuses(net, opt, scaler, "before and after scaler:update()")
    scaler:scale(F.mse_loss(net(x), y)):backward()
    scaler:step(opt)
  end)
  it("so is one of a gradient that was there before the optimizer, and of tied parameters", function()
    local net, x, y = make()
    local scaler = amp.GradScaler()
    F.mse_loss(net(x), y):backward()
    scaler:scale(F.mse_loss(net(x), y)):backward()
    local opt = optim.SGD(net:parameters(), { lr = 0.01 })
    refuses(net, opt, scaler, "a scaled and an unscaled loss")
  end)
  it("so it is by LBFGS, and an alias keeps what it had", function()
    local w, scaler = nn.Parameter(gb.ones(3)), amp.GradScaler { init_scale = 4 }
    local opt = optim.LBFGS({ w }, { lr = 1 })
    scaler:scale((w * w):sum()):backward()
    local alias = w.grad:detach()
    w:sum():backward()
    expect(alias):to_equal_bits(gb.full({ 3 }, 8.0))
    expect(w.grad):to_equal_bits(gb.full({ 3 }, 9.0))
    local function mixed()
      opt:zero_grad()
      scaler:scale((w * w):sum()):backward()
      w:sum():backward()
      return w:sum()
    end
    expect(function() opt:step(mixed) end):to_fail("a scaled and an unscaled loss")
    expect(w):to_equal_bits(gb.ones(3))
  end)
  it("networks that are trained in turn leave gradients in each other, which are zeroed", function()
    for _, own in ipairs { false, true } do
      local one, x, y = make()
      local other = make()
      local scalers = { amp.GradScaler { init_scale = 4 } }
      scalers[2] = own and amp.GradScaler { init_scale = 8 } or scalers[1]
      local opts = { optim.SGD(one:parameters(), { lr = 0.01 }), optim.SGD(other:parameters(), { lr = 0.01 }) }
      local plain, like, of_plain = make(), make(), {}
      plain:load_state_dict(one:state_dict())
      like:load_state_dict(other:state_dict())
      of_plain[1] = optim.SGD(plain:parameters(), { lr = 0.01 })
      of_plain[2] = optim.SGD(like:parameters(), { lr = 0.01 })
      for _ = 1, 3 do
        for k = 1, 2 do
          opts[k]:zero_grad()
          scalers[k]:scale(F.mse_loss(one(x), y) + F.l1_loss(other(x), y)):backward()
          scalers[k]:step(opts[k])
          scalers[k]:update()
          of_plain[k]:zero_grad()
          local loss = F.mse_loss(plain(x), y) + F.l1_loss(like(x), y)
          loss:backward()
          of_plain[k]:step()
        end
      end
      for name, value in pairs(one:state_dict()) do expect(value:equal(plain:state_dict()[name])):to_be(true) end
      for name, value in pairs(other:state_dict()) do expect(value:equal(like:state_dict()[name])):to_be(true) end
    end
  end)
  it("a wrong option names the nearest", function()
    expect(function() amp.GradScaler { init_scal = 2 } end):to_fail("init_scale")
    expect(function() amp.GradScaler { growth_factor = 1 } end):to_fail("growth_factor")
    expect(function() amp.GradScaler { backoff_factor = 1 } end):to_fail("backoff_factor")
    expect(function() amp.GradScaler { init_scale = -1 } end):to_fail("scale")
  end)
  it("a scale that is none", function()
    for _, value in ipairs { 0, -1, -math.huge, math.huge, 0 / 0 } do
      expect(function() amp.GradScaler { scale = value } end):to_fail("scale")
      expect(function() amp.GradScaler { init_scale = value } end):to_fail("scale")
      expect(function() amp.GradScaler(amp.precision("16-mixed"), { scale = value }) end):to_fail("scale")
    end
    expect(function() amp.GradScaler { scale = "big" } end):to_fail("scale")
    local _, opt, scaler = ready()
    scaler:step(opt)
    for _, value in ipairs { 0, -2 } do
      expect(function() scaler:update(value) end):to_fail("above 0")
    end
    expect(scaler:get_scale()):to_be(65536.0)
  end)
  it("options beside a precision", function()
    local scaler = amp.GradScaler(amp.precision("16-mixed"), { init_scale = 128, growth_interval = 3 })
    expect(scaler:is_enabled()):to_be(true)
    expect(scaler:get_scale()):to_be(128.0)
    expect(scaler:get_growth_interval()):to_be(3)
    expect(amp.GradScaler(amp.precision("bf16-mixed"), { init_scale = 128 }):is_enabled()):to_be(false)
    expect(amp.GradScaler(amp.precision("16-mixed"), { enabled = false }):is_enabled()):to_be(false)
    expect(amp.GradScaler(amp.precision("32-true")):is_enabled()):to_be(false)
    expect(function() amp.GradScaler(amp.precision("32-true"), { init_scal = 128 }) end):to_fail("init_scale")
    expect(function() amp.GradScaler(amp.precision("16-mixed"), 5) end):to_fail("GradScaler")
  end)
end)

describe("state", function()
  it("has PyTorch's keys and loads before and after the first scale", function()
    local _, x = make()
    local scaler = amp.GradScaler { init_scale = 256, growth_interval = 7 }
    local state = scaler:state_dict()
    for _, key in ipairs { "scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker" } do
      expect(state[key] ~= nil):to_be(true)
    end
    local other = amp.GradScaler()
    other:load_state_dict(state)
    expect(other:get_scale()):to_be(256.0)
    expect(other:get_growth_interval()):to_be(7)
    other:scale(x:sum())
    other:load_state_dict { scale = 64.0, growth_factor = 2.0, backoff_factor = 0.5, growth_interval = 2000,
      _growth_tracker = 5 }
    expect(other:get_scale()):to_be(64.0)
    expect(other:stats().growth_tracker):to_be(5)
  end)
  it("with a counter that is no whole number, or a scale that is none, is refused and changes nothing", function()
    local scaler = amp.GradScaler { init_scale = 512 }
    local whole = scaler:state_dict()
    local function with(key, value)
      local state = {}
      for name, old in pairs(whole) do state[name] = old end
      state[key] = value
      return function() scaler:load_state_dict(state) end
    end
    for _, key in ipairs { "growth_interval", "_growth_tracker", "_steps", "_skipped", "_skipped_in_a_row" } do
      expect(with(key, 1.5)):to_fail(key)
      expect(with(key, 0 / 0)):to_fail(key)
      expect(with(key, math.huge)):to_fail(key)
      expect(with(key, "x")):to_fail(key)
      expect(with(key, -1)):to_fail("")
    end
    for _, value in ipairs { 0, -1, math.huge, 0 / 0, "x" } do expect(with("scale", value)):to_fail("scale") end
    expect(with("growth_factor", 1)):to_fail("growth_factor")
    whole.scale, whole._steps, whole._skipped = 64.0, 9, 2 -- what is refused restores no part of it
    expect(with("_skipped_in_a_row", 3)):to_fail("no more in a row than in all")
    expect(with("scale", 0)):to_fail("scale")
    expect(with("growth_interval", 0)):to_fail("growth_interval")
    whole._skipped, whole._steps = 0, 0
    expect(scaler:get_scale()):to_be(512.0)
    expect(scaler:stats().steps):to_be(0)
    with("_steps", 7.0)() -- a float with a whole value is one
    expect(scaler:stats().steps):to_be(7)
  end)
  it("of a disabled scaler is empty, and loading it is an error", function()
    local disabled = amp.GradScaler { enabled = false }
    expect(next(disabled:state_dict())):to_be(nil)
    expect(function() amp.GradScaler():load_state_dict {} end):to_fail("empty")
    expect(disabled:get_scale()):to_be(1)
  end)
end)

describe("16-bit parameters", function()
  it("have float32 gradients and masters in the optimizer", function()
    gb.manual_seed(2)
    local w = nn.Parameter(gb.randn(4, 4, { dtype = "bfloat16" }))
    local opt = optim.SGD({ w }, { lr = 2 ^ -12 })
    local x = gb.ones(1, 4, { dtype = "bfloat16" })
    local before = w:detach():clone()
    for _ = 1, 4 do
      opt:zero_grad()
      F.linear(x, w):to("float32"):sum():backward()
      expect(w.grad.dtype):to_be("float32")
      opt:step()
    end
    -- each step alone rounds to nothing in bfloat16; the masters keep them
    local state = opt:state_dict().state[1]
    expect(state.master):to_be_close(before:to("float32") - 4 * 2 ^ -12, 1e-6)
  end)
end)

gb.test.finish()
