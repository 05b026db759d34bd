-- test_clip.lua - norms and clips without passes of their own: the norm that unscale_ measures on its way, which
-- clip_grad_norm_ takes where nothing has touched the gradients since, and the clip inside scaler:step. Whatever way is
-- taken, the bits are those of one pass after another.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local amp, nn, optim = gb.amp, gb.nn, gb.optim
local clip = nn.utils.clip_grad_norm_

-- A norm, which is a tensor on a device.
local function number(norm) return gb.is_tensor(norm) and norm:item() or norm end

-- Parameters that fill more than one chunk, end within a tile, and lie apart; those named in `without` get no gradient.
local sizes = { { 5 }, { 130, 300 }, { 7, 9 }, { 3000 } }
local function model(dtype, without)
  gb.manual_seed(11)
  local list = {}
  for i, size in ipairs(sizes) do list[i] = nn.Parameter(gb.randn(size):to(dtype or "float32")) end
  -- Backward of a loss whose gradients differ from element to element; `big` is added to one of them, times the scale.
  local function backward(scaler, big)
    local loss = 0
    for i, p in ipairs(list) do
      if not (without and without[i]) then
        local x = p:float()
        loss = loss + ((x * (0.3 * i)):sin() * 2):sum() + (big and i == 2 and (x[3] * big):sum() or 0)
      end
    end
    (scaler and scaler:scale(loss) or loss):backward()
  end
  return list, backward
end

-- The 2-norm as a pass over the gradients alone finds it: with a parameter of nobody in the list, whose gradient is 0,
-- no norm is known.
local function measured(list, limit)
  local stranger = nn.Parameter(gb.zeros(1))
  stranger.grad = gb.zeros(1)
  local all = table.move(list, 1, #list, 1, {})
  all[#all + 1] = stranger
  return number(clip(all, limit or 1e30))
end

-- Gradients by their true size, and a scaler whose scale is no power of two.
local function unscaled(list, backward)
  local opt, scaler = optim.SGD(list, { lr = 0.1 }), amp.GradScaler { init_scale = 1000 }
  backward(scaler)
  scaler:unscale_(opt)
  return opt, scaler
end

describe("the norm that unscale_ measured", function()
  it("has the bits of the norm measured before, after, and in step", function()
    for _, without in ipairs { {}, { true }, { [4] = true }, { true, [3] = true } } do
      for _, dtype in ipairs { "float32", "bfloat16", "float64" } do
        local norms = {}
        for way = 1, 4 do
          local list, backward = model(dtype, without)
          local opt, scaler = optim.SGD(list, { lr = 0.1 }), amp.GradScaler { init_scale = 1000 }
          backward(scaler)
          if way == 1 then norms[way] = number(clip(list, 1e30)) -- gradients carry their scale
          elseif way == 2 then norms[way] = number(scaler:step(opt, { clip = 1 }))
          else
            scaler:unscale_(opt)
            norms[way] = way == 3 and number(clip(list, 1e30)) or measured(list)
          end
        end
        expect(norms[1] > 10):to_be(true)
        for way = 2, 4 do expect(norms[way]):to_be(norms[1]) end
      end
    end
  end)
  it("clips as a measured one does", function()
    local one, backward = model()
    unscaled(one, backward)
    local known = number(clip(one, 0.5))
    local other, again = model()
    unscaled(other, again)
    expect(measured(other, 0.5)):to_be(known)
    for i, p in ipairs(one) do expect(p.grad):to_equal_bits(other[i].grad) end
    expect(number(clip(one, 1e30))):to_be(measured(one)) -- a clip writes
    expect(measured(one)):to_be_near(0.5, 1e-5)
  end)

  local writers = {
    { "an op in place", function(list) list[2].grad:mul_(3) end },
    { "an op on a view of a view", function(list) list[2].grad:select(1, 2):narrow(1, 1, 7):fill_(5) end },
    { "an op on what shares its memory", function(list) list[4].grad:detach():add_(1) end },
    { "copy_ from elsewhere", function(list) list[1].grad:copy_(gb.ones(5)) end },
    { "another gradient", function(list) list[3].grad = gb.ones(7, 9) end },
    { "no gradient", function(list) list[4].grad = nil end },
    { "further backward, without a scale", function(_, _, backward) backward() end },
    { "backward of a product, which writes where the gradient was", function(list)
      list[2].grad = nil
      nn.functional.linear(gb.ones(2, 300), list[2]):sum():backward()
    end },
    { "an assignment to elements", function(list) list[2].grad[3] = 9 end },
    { "a state that is loaded into it", function(list)
      local holder = nn.Module:extend("Holder")()
      holder:register_buffer("held", list[4].grad)
      holder:load_state_dict { held = gb.full({ 3000 }, 2.0) }
    end },
    { "one more group", function(list, opt)
      list[5] = nn.Parameter(gb.ones(3))
      list[5].grad = gb.full({ 3 }, 50.0)
      opt:add_param_group { params = { list[5] } }
    end },
    { "zero_grad and backward", function(_, opt, backward) opt:zero_grad() backward() end },
    { "zero_grad, and one gradient put back", function(list, opt)
      local kept = list[2].grad
      opt:zero_grad()
      list[2].grad = kept
    end },
    { "clip_grad_value_", function(list) nn.utils.clip_grad_value_(list, 0.01) end },
    { "a clip of some of them", function(list) clip({ list[1], list[2] }, 0.1) end },
    { "a value that is not finite", function(list) list[2].grad:select(1, 1):fill_(math.huge) end },
  }
  for _, case in ipairs(writers) do
    it("is measured again after " .. case[1], function()
      local list, backward = model()
      local opt, scaler = unscaled(list, backward)
      local before = measured(list)
      case[2](list, opt, backward)
      local now = number(clip(list, 1e30))
      expect(now):to_be(measured(list))
      expect(now ~= before):to_be(true)
      if now < math.huge then return end
      scaler:step(opt) -- the scaler hears of it
      scaler:update()
      expect(scaler:stats().skipped):to_be(1)
    end)
  end
  it("is not taken for gradients of an earlier unscale_ that were put back", function()
    local list, backward = model(nil, { [4] = true })
    local opt, scaler = unscaled(list, backward)
    local kept = list[2].grad
    scaler:step(opt)
    scaler:update()
    opt:zero_grad()
    scaler:scale(list[3]:sum()):backward()
    scaler:unscale_(opt) -- has measured one gradient
    list[3].grad = nil
    list[2].grad = kept
    expect(number(clip(list, 1e30))):to_be(measured(list))
    expect(measured(list) > math.sqrt(63) * 1.01):to_be(true)
  end)
  it("is for all of the gradients, of one optimizer, and by 2 alone", function()
    local list, backward = model()
    unscaled(list, backward)
    local other, again = model()
    unscaled(other, again)
    local all = measured(list)
    expect(number(clip({ list[1], list[2] }, 1e30)) < all):to_be(true)
    expect(number(clip({ list[1], list[2], list[3], list[4], other[1], other[2], other[3], other[4] },
      1e30))):to_be_near(all * math.sqrt(2), all * 1e-6)
    expect(number(clip(list, 1e30, 1)) > all):to_be(true)
    expect(number(clip(list, 1e30, math.huge)) < all):to_be(true)
    expect(number(clip(list, 1e30))):to_be(all)
  end)
  it("has the bits of any order and repetition in the list", function()
    local list, half = model(), model("bfloat16")
    local params = { list[1], half[2], list[3], half[4] }
    local opt, scaler = optim.SGD(params, { lr = 0.1 }), amp.GradScaler()
    scaler:scale((list[1] * 3):sum() + half[2]:float():sin():sum() + (list[3] * 5):sum()
      + half[4]:float():cos():sum()):backward()
    scaler:unscale_(opt)
    for _, order in ipairs { { 1, 2, 3, 4 }, { 3, 4, 1, 2 }, { 4, 3, 2, 1 }, { 1, 1, 2, 3, 4, 4 } } do
      local listed = {}
      for i, k in ipairs(order) do listed[i] = params[k] end
      expect(number(clip(listed, 1e30))):to_be(measured(listed))
    end
  end)
  it("that is not finite skips the step", function()
    for _, big in ipairs { math.huge, 0 / 0 } do
      local list, backward = model()
      local opt, scaler = optim.SGD(list, { lr = 0.1 }), amp.GradScaler { init_scale = 64 }
      local before = list[2]:detach():clone()
      backward(scaler, big)
      scaler:unscale_(opt)
      local norm = number(clip(list, 1))
      expect(norm - norm ~= 0):to_be(true)
      scaler:step(opt)
      scaler:update()
      expect(scaler:get_scale()):to_be(32.0)
      expect(list[2]:detach()):to_equal_bits(before)
    end
  end)
end)

describe("a clip inside of step", function()
  local kinds = {
    { "SGD", { lr = 0.1 } },
    { "SGD", { lr = 0.1, momentum = 0.9, nesterov = true, weight_decay = 0.01 } },
    { "SGD", { lr = 0.1, maximize = true } },
    { "Adam", { lr = 0.01, weight_decay = 0.1 } },
    { "AdamW", { lr = 0.01, maximize = true } },
    { "Lion", { lr = 0.01, weight_decay = 0.1 } },
    { "RMSprop", { lr = 0.01, momentum = 0.5, maximize = true } },
    { "Rprop", { lr = 0.01 } },
    { "LAMB", { lr = 0.01, weight_decay = 0.1 } },
    { "LARS", { lr = 0.1, momentum = 0.5, weight_decay = 0.1, maximize = true } },
  }
  -- Three steps, clipped inside or before, of which the second may overflow; everything that can be seen afterwards.
  local function run(inside, kind, dtype, scale, limit, norm_type, big)
    local list, backward = model(dtype, { [3] = true })
    local opt, scaler = optim[kind[1]](list, kind[2]),
      amp.GradScaler { init_scale = scale or 1, enabled = scale ~= nil }
    local seen = {}
    for step = 1, 3 do
      opt:zero_grad()
      backward(scaler, step == 2 and big)
      if inside then seen[#seen + 1] = number(scaler:step(opt, { clip = limit, norm_type = norm_type }))
      else
        scaler:unscale_(opt)
        seen[#seen + 1] = number(clip(list, limit, norm_type))
        scaler:step(opt)
      end
      for _, p in ipairs(list) do seen[#seen + 1] = p.grad and p.grad:clone() or "none" end
      for _, p in ipairs(list) do seen[#seen + 1] = p:detach():clone() end
      scaler:update()
      seen[#seen + 1] = scaler:get_scale()
    end
    return seen, list
  end
  local function compare(...)
    local one, other = run(true, ...), run(false, ...)
    expect(#one):to_be(#other)
    for i, value in ipairs(one) do
      if gb.is_tensor(value) then expect(value):to_equal_bits(other[i])
      else expect(value == other[i] or (value ~= value and other[i] ~= other[i])):to_be(true) end
    end
  end
  it("leaves weights, gradients and norms as unscale_, clip_grad_norm_ and step do", function()
    for _, kind in ipairs(kinds) do
      for _, dtype in ipairs { "float32", "bfloat16", "float64" } do compare(kind, dtype, 1000, 0.5) end
    end
  end)
  it("where nothing is clipped, by other norms, and without a scaler", function()
    for _, kind in ipairs { kinds[1], kinds[5], kinds[6] } do
      compare(kind, "float32", 1000, 1e9)
      compare(kind, "float32", 48, 0.25, 1)
      compare(kind, "float32", 48, 0.25, 3)
      compare(kind, "float16", 48, 0.01, math.huge)
      compare(kind, "float32", nil, 0.5)
      compare(kind, "float64", nil, 1e9)
      compare(kind, "float32", 48, 0)
    end
  end)
  it("that is skipped leaves gradients as clip_grad_norm_ does", function()
    for _, kind in ipairs { kinds[2], kinds[4], kinds[6] } do
      compare(kind, "float32", 1000, 0.5, 2, math.huge)
      compare(kind, "float64", 1000, 0.5, 2, 0 / 0)
      compare(kind, "bfloat16", 1000, 0.5, math.huge, math.huge)
    end
  end)
  it("without a scaler steps on a norm that is not finite, as clip_grad_norm_ and step do", function()
    compare(kinds[1], "float32", nil, 0.5, 2, math.huge)
  end)
  it("leaves gradients without a scale, whose norm is another one", function()
    local list, backward = model()
    local opt, scaler = optim.SGD(list, { lr = 0.1 }), amp.GradScaler { init_scale = 1024 }
    backward(scaler)
    local norm = number(scaler:step(opt, { clip = 0.5 }))
    expect(norm > 1):to_be(true)
    expect(number(clip(list, 1e30))):to_be(measured(list))
    expect(measured(list)):to_be_near(0.5, 1e-5)
    scaler:update()
    opt:step()
    backward(scaler) -- what is scaled cannot be used as part of it
    expect(function() opt:step() end):to_fail("a scaled and an unscaled loss")
  end)
  it("after unscale_ takes its norm, or measures what was changed", function()
    for _, changed in ipairs { false, true } do
      local lists = {}
      for way = 1, 2 do
        local list, backward = model()
        local opt, scaler = unscaled(list, backward)
        if changed then list[2].grad:mul_(0.5) end
        if way == 1 then scaler:step(opt, { clip = 0.5 })
        else
          measured(list, 0.5)
          scaler:step(opt)
        end
        scaler:update()
        lists[way] = list
      end
      for i, p in ipairs(lists[1]) do expect(p:detach()):to_equal_bits(lists[2][i]:detach()) end
    end
  end)
  it("steps several optimizers, each by its own norm", function()
    local function both(inside)
      local one, backward = model()
      local two, again = model()
      local a, b, scaler = optim.SGD(one, { lr = 0.1 }), optim.AdamW(two, { lr = 0.1 }),
        amp.GradScaler { init_scale = 128 }
      backward(scaler)
      again(scaler, math.huge)
      for i, opt in ipairs { a, b } do
        if inside then scaler:step(opt, { clip = 0.5 })
        else
          scaler:unscale_(opt)
          clip(i == 1 and one or two, 0.5)
          scaler:step(opt)
        end
      end
      scaler:update()
      expect(scaler:get_scale()):to_be(64.0)
      return one, two
    end
    local a, b = both(true)
    local c, d = both(false)
    for i = 1, #a do
      expect(a[i]:detach()):to_equal_bits(c[i]:detach())
      expect(b[i]:detach()):to_equal_bits(d[i]:detach())
    end
  end)
  it("fails before anything has changed, and can be called again", function()
    local list, backward = model()
    local opt, scaler = optim.SGD(list, { lr = 0.1, momentum = 0.5 }), amp.GradScaler { init_scale = 1024 }
    backward(scaler)
    opt.param_groups[1].nesterov, opt.param_groups[1].dampening = true, 0.5
    local before, grad = list[2]:detach():clone(), list[2].grad:clone()
    expect(function() scaler:step(opt, { clip = 0.5 }) end):to_fail("nesterov")
    expect(list[2]:detach()):to_equal_bits(before)
    expect(list[2].grad):to_equal_bits(grad)
    opt.param_groups[1].nesterov = false
    scaler:step(opt, { clip = 0.5 })
    expect(list[2]:detach():eq(before):all():item()):to_be(false)
    scaler:update()
  end)
end)

gb.test.finish()
