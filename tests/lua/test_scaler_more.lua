-- test_scaler_more.lua - the gradient scaler beyond PyTorch's: hysteresis, scales by schedule, one scaler per loss,
-- clipping inside step; and how precisions are spelled. Scales are powers of two, so scaled runs in float32 give the
-- control's bits.

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

-- One parameter, and a function that takes a step whose gradient is finite or not.
local function toy(options)
  local w = nn.Parameter(gb.ones(3))
  local opt, scaler = optim.SGD({ w }, { lr = 0.125 }), amp.GradScaler(options)
  return function(found)
    opt:zero_grad()
    scaler:scale((w * (found == 1 and math.huge or 1)):sum()):backward()
    scaler:step(opt)
    scaler:update()
    return scaler:get_scale()
  end, scaler
end

-- The scales after each of the steps.
local function trace(options, founds)
  local step = toy(options)
  local scales = {}
  for i, found in ipairs(founds) do scales[i] = ("%d"):format(step(found)) end
  return table.concat(scales, " ")
end

describe("hysteresis", function()
  it("tolerates isolated skips, and a backoff does not refill it", function()
    expect(trace({ init_scale = 1024, hysteresis = 2 },
      { 1, 1, 1, 0, 1, 0, 1, 1 })):to_be("1024 512 256 256 256 256 256 128")
  end)
  it("of 1 is none", function()
    expect(trace({ init_scale = 1024 }, { 1, 1, 0, 1 })):to_be("512 256 256 128")
    expect(trace({ init_scale = 1024, hysteresis = 1 }, { 1, 1, 0, 1 })):to_be("512 256 256 128")
  end)
  it("a tolerated skip is a skip: no step, and growth starts again", function()
    local step, scaler = toy { init_scale = 8, hysteresis = 3, growth_interval = 2 }
    step(0)
    expect(scaler:stats().growth_tracker):to_be(1)
    expect(step(1)):to_be(8.0)
    expect(scaler:stats().growth_tracker):to_be(0)
    expect(scaler:stats().skipped):to_be(1)
    expect(step(0)):to_be(8.0)
    expect(step(0)):to_be(16.0)
  end)
  it("goes on where a saved state left it", function()
    local options = { init_scale = 1024, hysteresis = 2 }
    local step, scaler = toy(options)
    step(1)
    local resumed, other = toy(options)
    other:load_state_dict(scaler:state_dict())
    expect(resumed(1)):to_be(step(1))
    expect(other:get_scale()):to_be(512.0)
  end)
  it("below 1 is an error", function()
    expect(function() amp.GradScaler { hysteresis = 0 } end):to_fail("hysteresis")
    expect(function() amp.GradScaler { hysteresis = 1.5 } end):to_fail("hysteresis")
  end)
end)

describe("a scale by schedule", function()
  it("is asked for the step to come, and again after a skip", function()
    local asked = {}
    local step, scaler = toy { scale = function(n)
      asked[#asked + 1] = n
      return 2 ^ n
    end }
    expect(scaler:get_scale()):to_be(2.0)
    expect(step(0)):to_be(4.0)
    expect(step(1)):to_be(4.0)
    expect(step(0)):to_be(8.0)
    expect(table.concat(asked, " ")):to_be("1 2 2 3")
    expect(scaler:stats().skipped):to_be(1)
  end)
  it("gives the bits of an unscaled run", function()
    local function run(options)
      local net, x, y = make()
      local opt, scaler = optim.SGD(net:parameters(), { lr = 0.05 }), amp.GradScaler(options)
      for _ = 1, 5 do
        opt:zero_grad()
        scaler:scale(F.mse_loss(net(x), y)):backward()
        scaler:step(opt)
        scaler:update()
      end
      return net
    end
    same(run { scale = function(n) return 2 ^ (n % 3) end }, run { enabled = false })
  end)
  it("errors reach the recipe as they are, with its line", function()
    local step = toy { scale = function(n)
      if n == 3 then error("no scale for step 3") end
      return 1
    end }
    step(0)
    expect(function() step(0) end):to_fail("test_scaler_more.lua")
    local other = toy { scale = function(n) return n < 2 and 1 or error({ code = 7 }) end }
    local fine, value = pcall(other, 0)
    expect(fine):to_be(false)
    expect(value.code):to_be(7)
  end)
  it("an answer that is no scale is an error", function()
    expect(function() amp.GradScaler { scale = function() end } end):to_fail("must return a number")
    expect(function() amp.GradScaler { scale = function() return 0 end } end):to_fail("scheduled scale is 0")
    expect(function() amp.GradScaler { scale = function() return -math.huge end } end):to_fail("scheduled scale")
    expect(function() amp.GradScaler { scale = function() return 0 / 0 end } end):to_fail("scheduled scale")
  end)
  it("cannot close the scaler that asks it", function()
    local scaler, step
    step, scaler = toy { scale = function(n)
      if n == 2 then scaler:close() end
      return 1
    end }
    expect(function() step(0) end):to_fail("in use")
    scaler:close()
    expect(function() step(0) end):to_fail("closed")
  end)
  it("is not asked by a disabled scaler, nor where update names the scale", function()
    local asked = 0
    local function count() asked = asked + 1 return 4 end
    expect(amp.GradScaler({ enabled = false, scale = count }):get_scale()):to_be(1)
    expect(asked):to_be(0)
    local scaler = amp.GradScaler { scale = count }
    scaler:update(32)
    expect(scaler:get_scale()):to_be(32.0)
    expect(asked):to_be(1)
  end)
  it("goes on where a saved state left it", function()
    local function options() return { scale = function(n) return 2 ^ n end } end
    local step, scaler = toy(options())
    step(0)
    step(0)
    local resumed, other = toy(options())
    other:load_state_dict(scaler:state_dict())
    expect(resumed(0)):to_be(step(0))
    expect(other:get_scale()):to_be(16.0)
  end)
  it("PyTorch's state, without counters, loads", function()
    local scaler = amp.GradScaler()
    scaler:load_state_dict { scale = 64.0, growth_factor = 2.0, backoff_factor = 0.5, growth_interval = 2000,
      _growth_tracker = 5 }
    expect(scaler:stats().steps):to_be(0)
    expect(scaler:get_scale()):to_be(64.0)
    local state = scaler:state_dict()
    state._skipped = -1
    expect(function() scaler:load_state_dict(state) end):to_fail("counts")
  end)
end)

describe("one scaler per loss", function()
  -- Two losses over one net, each with a scale of its own; poison[step] multiplies the second.
  local function train(enabled, poison)
    local net, x, y = make()
    local opt = optim.SGD(net:parameters(), { lr = 0.05, momentum = 0.9 })
    local a = amp.GradScaler { enabled = enabled, per_loss = true, init_scale = 1024 }
    local b = amp.GradScaler { enabled = enabled, per_loss = true, init_scale = 2 ^ -4 }
    for step = 1, 5 do
      opt:zero_grad()
      local out = net(x)
      a:scale(F.mse_loss(out, y)):backward(nil, { retain_graph = true })
      b:scale(F.l1_loss(out, y) * (poison and poison[step] or 1)):backward()
      a:step(opt)
      a:update()
      b:update()
    end
    return net, a, b
  end
  it("gives the bits of an unscaled run", function()
    local scaled, a, b = train(true)
    same(scaled, (train(false)))
    expect(a:stats().steps):to_be(5)
    expect(b:stats().steps):to_be(5)
  end)
  it("an overflow skips the step, and shrinks the scale of its own loss alone", function()
    local net, a, b = train(true, { [3] = math.huge })
    expect(a:get_scale()):to_be(1024.0)
    expect(b:get_scale()):to_be(2 ^ -5)
    expect(a:stats().skipped):to_be(0)
    expect(b:stats().skipped):to_be(1)
    expect(a:report():find("weight", 1, true) ~= nil):to_be(true) -- the one that stepped has the report
    for _, p in ipairs(net:parameters()) do expect(p:isfinite():all():item()):to_be(true) end
  end)
  it("gradients have their true size: clipping, norms and p.grad see it", function()
    local function run(enabled, way)
      local net, x, y = make()
      local opt = optim.SGD(net:parameters(), { lr = 0.05 })
      local a = amp.GradScaler { enabled = enabled, per_loss = true, init_scale = 64 }
      local b = amp.GradScaler { enabled = enabled, per_loss = true, init_scale = 512 }
      local out = net(x)
      a:scale(F.mse_loss(out, y)):backward(nil, { retain_graph = true })
      b:scale(F.l1_loss(out, y)):backward()
      local grad = net[1].weight.grad:clone()
      if way == "unscale" then
        a:unscale_(opt)
        nn.utils.clip_grad_norm_(net:parameters(), 0.1)
        b:step(opt)
      else b:step(opt, { clip = 0.1 }) end
      a:update()
      b:update()
      return net, grad
    end
    local one, first = run(true, "unscale")
    local two, second = run(true, "clip")
    local control, third = run(false, "unscale")
    expect(first):to_equal_bits(third)
    expect(second):to_equal_bits(third)
    same(one, control)
    same(two, control)
  end)
  it("float16 gradients lose their scale in float32", function()
    local w = nn.Parameter(gb.ones(4):to("float16"))
    local opt = optim.SGD({ w }, { lr = 1 })
    local scaler = amp.GradScaler { per_loss = true, init_scale = 2 ^ 20 }
    scaler:scale((w:to("float32") * 2 ^ -30):sum()):backward()
    expect(w.grad.dtype):to_be("float32")
    expect(w.grad[1]:item()):to_be(2 ^ -30)
    scaler:step(opt)
    scaler:update()
    expect(scaler:stats().steps):to_be(1)
  end)
  it("parameters of any size, float64 ones, gradients of any layout", function()
    local empty, wide = nn.Parameter(gb.ones(0, 3)), nn.Parameter(gb.ones(3, 4, { dtype = "float64" }))
    local plain = nn.Parameter(gb.ones(4, 3))
    local opt = optim.SGD({ empty, wide, plain }, { lr = 1 })
    local a, b = amp.GradScaler { per_loss = true, init_scale = 8 }, amp.GradScaler { per_loss = true, init_scale = 2 }
    a:scale(empty:sum() + (wide:t():to("float32") * plain):sum()):backward()
    b:scale((plain:t() * 3):sum() + plain:sum()):backward()
    a:step(opt)
    a:update()
    b:update()
    expect(wide:detach()):to_equal_bits(gb.zeros(3, 4, { dtype = "float64" }))
    expect(plain:detach()):to_equal_bits(gb.full({ 4, 3 }, -4.0))
  end)
  it("what only the sum overflows counts for the scaler that steps", function()
    local w = nn.Parameter(gb.ones(2))
    local opt = optim.SGD({ w }, { lr = 1 })
    local a, b = amp.GradScaler { per_loss = true, scale = 1 }, amp.GradScaler { per_loss = true, init_scale = 1 }
    a:scale((w * 3e38):sum()):backward()
    b:scale((w * 3e38):sum()):backward()
    b:step(opt)
    a:update()
    b:update()
    expect(a:stats().skipped):to_be(0)
    expect(b:stats().skipped):to_be(1)
    expect(w:detach()):to_equal_bits(gb.ones(2))
  end)
  it("an optimizer is stepped once for all of its losses", function()
    local net, x, y = make()
    local opt = optim.SGD(net:parameters(), { lr = 0.05 })
    local a, b = amp.GradScaler { per_loss = true }, amp.GradScaler { per_loss = true }
    local out = net(x)
    a:scale(F.mse_loss(out, y)):backward(nil, { retain_graph = true })
    b:scale(F.l1_loss(out, y)):backward()
    a:step(opt)
    expect(function() b:step(opt) end):to_fail("another loss")
    expect(function() a:step(opt) end):to_fail("update")
    a:update()
    b:update()
    expect(function() b:update() end):to_fail("update")
  end)
  it("scalers that are not per loss may not meet; the error names the cure", function()
    local net, x, y = make()
    local opt = optim.SGD(net:parameters(), { lr = 0.05 })
    local a, b, c = amp.GradScaler(), amp.GradScaler(), amp.GradScaler { per_loss = true }
    local out = net(x)
    a:scale(F.mse_loss(out, y)):backward(nil, { retain_graph = true })
    b:scale(F.mse_loss(out, y)):backward(nil, { retain_graph = true })
    for _, scaler in ipairs { a, b } do expect(function() scaler:step(opt) end):to_fail("per_loss") end
    opt:zero_grad()
    a:scale(F.mse_loss(out, y)):backward(nil, { retain_graph = true })
    c:scale(F.l1_loss(out, y)):backward()
    expect(function() c:step(opt) end):to_fail("a scaled and an unscaled loss")
    opt:zero_grad()
    a:scale(F.mse_loss(net(x), y)):backward()
    c:scale(F.l1_loss(net(x), y))
    expect(function() c:step(opt) end):to_fail("per_loss")
    out = net(x)
    local both = a:scale(F.mse_loss(out, y)) + b:scale(F.mse_loss(out, y)) -- these meet within one backward
    expect(function() both:backward() end):to_fail("per_loss")
  end)
  it("a loss scaled before its scaler's update is an error", function()
    local w = nn.Parameter(gb.ones(2))
    local opt = optim.SGD({ w }, { lr = 1 })
    local scaler = amp.GradScaler { per_loss = true }
    local early = scaler:scale(w:sum())
    scaler:scale(w:sum()):backward()
    scaler:step(opt)
    scaler:update()
    opt:zero_grad()
    expect(function() early:backward() end):to_fail("update")
  end)
end)

describe("gradients that are zeroed by hand", function()
  -- Three steps; how(p) zeroes what a step leaves.
  local function trained(how, scaled, late)
    local net, x, y = make()
    local opt, scaler = not late and optim.SGD(net:parameters(), { lr = 0.125 }), amp.GradScaler { enabled = scaled }
    for _ = 1, 3 do
      scaler:scale(F.mse_loss(net(x), y)):backward()
      opt = opt or optim.SGD(net:parameters(), { lr = 0.125 })
      scaler:step(opt)
      scaler:update(2 ^ 12)
      for _, p in ipairs(net:parameters()) do how(p) end
      scaler:scale((net(x) * 0):sum()):backward()
    end
    return net
  end
  local function reset(p) p.grad:zero_() end
  for name, how in pairs {
    zero_ = reset, ["fill_(0)"] = function(p) p.grad:fill_(0) end,
    ["zero_ in no_grad"] = function(p) gb.no_grad(reset, p) end,
  } do
    it("have no scale: " .. name, function()
      same(trained(how, true), trained(how, false))
      same(trained(how, true, true), trained(how, false))
    end)
  end
  it("go with any scale where nothing is added", function()
    local a, b = nn.Parameter(gb.ones(2)), nn.Parameter(gb.ones(2))
    local opt, scaler = optim.SGD({ a, b }, { lr = 0.5, momentum = 0.5 }), amp.GradScaler { init_scale = 8 }
    scaler:scale((a + b):sum()):backward()
    scaler:step(opt)
    scaler:update()
    reset(a)
    reset(b)
    scaler:scale(b:sum()):backward()
    scaler:unscale_(opt)
    expect(a.grad:sum():item() + b.grad:sum():item()):to_be(2.0)
    scaler:step(opt)
    expect(a:tolist()[1]):to_be(0.25)
    expect(b:tolist()[1]):to_be(-0.25)
    reset(a)
    reset(b)
    opt:step()
    expect(a:tolist()[1]):to_be(0.125)
    scaler:update()
    b:sum():backward() -- without a scaler, beside a zeroed one
    opt:step()
    expect(b:tolist()[1]):to_be(-1.3125)
  end)
  it("have the scale of before once something is written to them", function()
    local a = nn.Parameter(gb.ones(2))
    local opt, scaler = optim.SGD({ a }, { lr = 0.5 }), amp.GradScaler { init_scale = 8 }
    local writes = { function(g, kept) g:add_(kept) end, function(g, kept) g[{}] = kept end,
      function(g, kept) g:view(2, 1):copy_(kept:view(2, 1)) end, function(g, kept) g:select(1, 2):copy_(kept[2]) end }
    for _, write in ipairs(writes) do -- a gradient that is masked by hand
      gb.no_grad(function() a:fill_(1) end)
      scaler:scale((a * 3):sum()):backward()
      local kept = a.grad * gb.tensor { 0.0, 1.0 }
      reset(a)
      write(a.grad, kept)
      scaler:step(opt)
      expect(a:tolist()[1]):to_be(1.0)
      expect(a:tolist()[2]):to_be(-0.5)
      scaler:update(8)
      opt:zero_grad()
    end
    scaler:scale(a:sum()):backward()
    scaler:update(16)
    reset(a)
    a.grad:add_(1) -- of the scale before the update
    expect(function() scaler:step(opt) end):to_fail("was scaled before the last scaler:update()")
    gb.no_grad(function() a:fill_(1) end)
    reset(a)
    nn.utils.clip_grad_norm_({ a }, 1) -- zeros stay zeros
    scaler:scale(a:sum()):backward()
    scaler:step(opt)
    expect(a:tolist()[1]):to_be(0.5)
  end)
  it("stay zeros of any scale where they are brought to an optimizer or through shards", function()
    local a, scaler = nn.Parameter(gb.ones(2)), amp.GradScaler { init_scale = 8 }
    local opt = optim.SGD({ a }, { lr = 0.5 })
    a.grad = gb.ones(2):zero_()
    scaler:scale(a:sum()):backward()
    scaler:step(opt)
    expect(a:tolist()[1]):to_be(0.5)
    local net = nn.Linear(4, 1)
    local ddp = nn.parallel.DataParallel(net, { shards = 4 })
    opt, scaler = optim.SGD(net:parameters(), { lr = 0.1 }), amp.GradScaler { init_scale = 8 }
    for step = 1, 3 do
      if step > 1 then for _, p in ipairs(net:parameters()) do reset(p) end end
      for xs in ddp:shards(gb.ones(8, 4)) do scaler:scale(ddp(xs):sum()):backward() end
      scaler:step(opt)
      scaler:update()
    end
    local b = nn.Parameter(gb.ones(2))
    local c = nn.Parameter(b:detach()) -- the same memory
    scaler:scale((b + c):sum()):backward()
    scaler:update(16)
    reset(b)
    reset(c)
    opt = optim.SGD({ b, c }, { lr = 0.5 })
    scaler:scale((b + c):sum()):backward()
    scaler:step(opt)
  end)
  it("keep the scale of what was written to them where another parameter gets them", function()
    local a, b, scaler = nn.Parameter(gb.ones(2)), nn.Parameter(gb.ones(2)), amp.GradScaler { init_scale = 8 }
    local opt = optim.SGD({ a }, { lr = 0.5 })
    scaler:scale((a * 3 + b * 3):sum()):backward()
    local kept = b.grad:clone()
    reset(b)
    b.grad:add_(kept)
    a.grad = b.grad
    opt:step()
    expect(a:tolist()[1]):to_be(-0.5)
  end)
  it("have none where no optimizer has them, and as kept gradients", function()
    local x, scaler = gb.ones(2):requires_grad_(), amp.GradScaler { init_scale = 8 }
    local y = x * 2
    y:retain_grad()
    local z = y:sum()
    scaler:scale(z):backward({ retain_graph = true })
    local held = x.grad
    y.grad:zero_()
    x.grad:zero_()
    z:backward()
    expect(y.grad:tolist()[1]):to_be(1.0)
    expect(x.grad:tolist()[1]):to_be(2.0)
    expect(held:tolist()[1]):to_be(2.0)
    y = x * 2
    y:backward(gb.ones(2):zero_()) -- a root of zeros brings no scale
    expect(x.grad:tolist()[1]):to_be(2.0)
  end)
end)

describe("clipping in step", function()
  -- A norm, which is a tensor on a device.
  local function number(norm) return gb.is_tensor(norm) and norm:item() or norm end

  -- The same three steps with unscale_ and clip_grad_norm_ apart or in one call; returns the norms too.
  local function run(together, options, factor)
    local net, x, y = make()
    local opt = optim.AdamW(net:parameters(), { lr = 0.01 })
    local scaler = amp.GradScaler(options)
    local norms = {}
    for step = 1, 3 do
      opt:zero_grad()
      local loss = F.mse_loss(net(x), y)
      if step == 2 and factor then loss = loss + (net[3].weight * factor):sum() end
      scaler:scale(loss):backward()
      if together then norms[step] = number(scaler:step(opt, { clip = 0.25 }))
      else
        scaler:unscale_(opt)
        norms[step] = number(nn.utils.clip_grad_norm_(net:parameters(), 0.25))
        scaler:step(opt)
      end
      scaler:update()
    end
    return net, norms, scaler
  end
  it("equals unscale_, clip_grad_norm_ and step, bit for bit", function()
    for _, options in ipairs { { init_scale = 1000 }, { enabled = false }, { scale = 128 } } do
      local one, norms = run(true, options)
      local two, others = run(false, options)
      same(one, two)
      for step = 1, 3 do expect(norms[step]):to_be(others[step]) end
    end
  end)
  it("a norm that is not finite skips the step", function()
    for _, factor in ipairs { math.huge, 0 / 0 } do
      local one, norms, scaler = run(true, { init_scale = 64 }, factor)
      same(one, (run(false, { init_scale = 64 }, factor)))
      expect(norms[2] - norms[2] ~= 0):to_be(true)
      expect(scaler:stats().skipped):to_be(1)
      expect(scaler:get_scale()):to_be(32.0)
    end
  end)
  it("a norm that overflows over finite gradients skips it too", function()
    local w = nn.Parameter(gb.ones(2, { dtype = "float64" }))
    local opt, scaler = optim.SGD({ w }, { lr = 1 }), amp.GradScaler { scale = 1 }
    scaler:scale((w * 1e30):sum()):backward()
    expect(number(scaler:step(opt, { clip = 1, norm_type = 20 }))):to_be(math.huge)
    scaler:update()
    expect(scaler:stats().skipped):to_be(1)
    expect(w[1]:item()):to_be(1.0)
  end)
  it("works after unscale_, and takes other norms", function()
    local net, x, y = make()
    local opt, scaler = optim.SGD(net:parameters(), { lr = 0.05 }), amp.GradScaler()
    scaler:scale(F.mse_loss(net(x), y)):backward()
    scaler:unscale_(opt)
    local largest = number(scaler:step(opt, { clip = 1e-3, norm_type = math.huge }))
    local biggest = 0
    for _, p in ipairs(net:parameters()) do biggest = math.max(biggest, p.grad:abs():max():item()) end
    expect(largest > 1e-3):to_be(true)
    expect(biggest):to_be_near(1e-3, 1e-5)
  end)
  it("mistakes are named", function()
    local net, x, y = make()
    local opt, scaler = optim.SGD(net:parameters(), { lr = 0.05 }), amp.GradScaler()
    expect(function() scaler:step(opt, { clip = 1 }) end):to_fail("gradient")
    scaler:scale(F.mse_loss(net(x), y)):backward()
    expect(function() scaler:step(opt, { clip = -1 }) end):to_fail("clip")
    expect(function() scaler:step(opt, { clip = 0 / 0 }) end):to_fail("clip")
    expect(function() scaler:step(opt, { clip = 1, norm_type = 0 }) end):to_fail("norm_type")
    expect(function() scaler:step(opt, { norm_type = 2 }) end):to_fail("clip")
    expect(function() scaler:step(opt, { clop = 1 }) end):to_fail("clip")
    expect(function() scaler:step(opt, 1) end):to_fail("options")
    scaler:step(opt, { clip = 1 }) -- and nothing had changed
    expect(function() scaler:step(opt, { clip = 1 }) end):to_fail("update")
  end)
end)

describe("the cause of a skip", function()
  -- Steps of a loss, and the causes reported after each.
  local function causes(options, steps, parameters, loss)
    local opt, scaler = optim.SGD(parameters, { lr = 0 }), amp.GradScaler(options)
    local found = {}
    for step = 1, steps do
      opt:zero_grad()
      scaler:scale(loss(step)):backward()
      scaler:step(opt)
      scaler:update()
      found[step] = select(2, scaler:report()) or "unknown"
    end
    return found, scaler
  end
  local function has(text, part) if not text:find(part, 1, true) then
    error(("'%s' has no '%s'"):format(text, part), 2) end end

  it("names the op, the line, and what half the scale would do", function()
    local w = nn.Parameter(gb.ones(4))
    local function loss()
      local h = w:to("float16")
      return (h * 1):to("float32"):sum() -- where gradients become float16: 2^16 is the first power that does not fit
    end
    local found, scaler = causes({ init_scale = 2 ^ 18 }, 5, { w }, loss)
    expect(found[1]):to_be("unknown") -- the first skip arms
    has(found[2], "the gradient of cast (")
    has(found[2], "test_scaler_more.lua:" .. debug.getinfo(loss, "S").linedefined + 2)
    has(found[2], "not finite at half the scale either")
    has(found[3], ", finite at half the scale")
    expect(found[5]):to_be(found[3]) -- of the last skip
    expect(scaler:stats().skipped):to_be(3)
  end)
  it("names a derivative that is not finite at any scale, and a sum", function()
    local w = nn.Parameter(gb.ones(3))
    local found = causes({}, 2, { w }, function() return (w - 1):sqrt():sum() end)
    has(found[2], "the gradient of sqrt (")
    has(found[2], "not finite at half the scale either")
    local v = nn.Parameter(gb.zeros(3))
    found = causes({ scale = 1 }, 2, { v }, function()
      local y = v + 0
      return (y * 3e38):sum() * 0.9 + (y * 3e38):sum() * 0.9
    end)
    has(found[2], "the sum of the gradients")
  end)
  it("in the forward pass it is what made the loss, masks aside", function()
    local w = nn.Parameter(gb.ones(3))
    local found = causes({}, 2, { w }, function()
      local masked = (w * 1):masked_fill(gb.tensor { true, false, false }, -math.huge)
      return F.softmax(masked, -1):sum() + (w * 2 - 3):sqrt():sum()
    end)
    expect(found[1]):to_be("unknown")
    has(found[2], "sqrt (")
    has(found[2], "in the forward pass: the loss is not finite at any scale")
  end)
  it("is in the error of too many skips, and a custom function is named too", function()
    local w = nn.Parameter(gb.ones(3))
    local calls = 0
    local fn = gb.Function {
      forward = function(_, x) return x * 1 end,
      backward = function(_, g)
        calls = calls + 1
        return g * math.huge
      end,
    }
    expect(function() causes({ max_skips = 3 }, 3, { w },
      function() return fn(w):sum() end) end):to_fail("First: the gradient of")
    expect(calls):to_be(3) -- and called no oftener for it
  end)
  it("changes no bit of what is computed", function()
    local function run(first)
      local net, x, y = make()
      local opt, scaler = optim.SGD(net:parameters(), { lr = 0.05 }),
        amp.GradScaler { init_scale = 64, hysteresis = 100 }
      for step = 1, 6 do
        if step >= first then
          opt:zero_grad()
          local loss = amp.autocast({ dtype = "bfloat16" }, function() return F.mse_loss(net(x), y) end)
          -- two skips, and a traced step that is good
          if step <= 2 then loss = loss + (net[3].weight * math.huge):sum() end
          scaler:scale(loss):backward()
          scaler:step(opt)
          scaler:update()
        end
      end
      return net
    end
    same(run(1), run(3))
  end)
end)

describe("precisions", function()
  it("are known by many names", function()
    local names = {
      ["32-true"] = { "32-true", "32", 32, "fp32", "float32", "O0" },
      ["16-mixed"] = { "16-mixed", "16", 16, "fp16", "mixed_float16", "O1" },
      ["bf16-mixed"] = { "bf16-mixed", "bf16", "mixed_bfloat16" },
      ["16-true"] = { "16-true", "float16", "O2" },
      ["bf16-true"] = { "bf16-true", "bfloat16" },
    }
    for name, spellings in pairs(names) do
      for _, spelling in ipairs(spellings) do expect(tostring(amp.precision(spelling))):to_be(name) end
    end
    local mixed = amp.precision(16)
    expect(amp.precision(mixed)):to_be(mixed)
  end)
  it("unknown ones list what there is", function()
    for _, name in ipairs { "64-true", "O3", 8, "", false, {}, 1.5 } do
      expect(function() amp.precision(name) end):to_fail("16-mixed")
    end
    expect(function() amp.precision() end):to_fail("'name' is missing")
  end)

  -- What the executable that runs this prints with the variable set.
  local function outside(setting, option, name)
    local script = ("print(require('gibbous').amp.precision '%s')"):format(name)
    local pipe <close> = io.popen(('%s "%s" %s -e "%s" 2>&1'):format(setting, gb.test.program(), option, script))
    return pipe:read("a")
  end
  it("are overridden from outside by GIBBOUS_AMP, which tostring says", function()
    expect(outside("GIBBOUS_AMP=bf16", "", "16-mixed")):to_be("bf16-mixed (GIBBOUS_AMP; the recipe says 16-mixed)\n")
    expect(outside("GIBBOUS_AMP=", "", "16-mixed")):to_be("16-mixed\n")
    expect(outside("GIBBOUS_AMP=bf16", "-E", "16-mixed")):to_be("16-mixed\n")
  end)
  it("a wrong one is an error wherever it comes from", function()
    expect(outside("GIBBOUS_AMP=bf17", "", "16-mixed"):find("environment variable GIBBOUS_AMP", 1,
      true) ~= nil):to_be(true)
    expect(outside("GIBBOUS_AMP=bf16", "", "17-mixed"):find("'17-mixed'", 1, true) ~= nil):to_be(true)
  end)
end)

gb.test.finish()
