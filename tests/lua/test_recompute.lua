-- test_recompute.lua - gb.recompute: the bits of the plain run, with less kept; modes, random numbers, nesting, errors.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local amp, nn, F, optim = gb.amp, gb.nn, gb.nn.functional, gb.optim

local function plain(fn, ...) return fn(...) end

-- Run body(call) from the same random state with both ways to call a function; both lists of tensors have the same
-- bits.
local function same(body)
  gb.manual_seed(7)
  local a = body(plain)
  local drawn = gb.randn(3)
  gb.manual_seed(7)
  local b = body(gb.recompute)
  expect(#b):to_be(#a)
  for i = 1, #a do expect(b[i]):to_equal_bits(a[i]) end
  expect(gb.randn(3)):to_equal_bits(drawn)
end

-- What backward left in x and in a module's parameters.
local function grads(x, model)
  local list = { x.grad }
  for _, p in ipairs(model:parameters()) do list[#list + 1] = p.grad end
  return list
end

describe("recompute", function()
  it("gives the values and gradients of the plain run, to the bit", function()
    same(function(call)
      local model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6))
      local x = gb.randn(4, 6):requires_grad_()
      local h = x:tanh()
      local y = call(function(v) return model(v) + h end, h)
      local loss = y:square():sum() + model(h):sum()
      loss:backward()
      local all = grads(x, model)
      all[#all + 1] = y:detach()
      return all
    end)
  end)
  it("takes a module, and sums into gradients that are there", function()
    same(function(call)
      local model = nn.Linear(5, 5)
      local x = gb.randn(3, 5):requires_grad_()
      for _ = 1, 3 do call(model, call(model, x)):sum():backward() end
      return grads(x, model)
    end)
  end)
  it("needs no argument that requires gradients", function()
    same(function(call)
      local model = nn.Linear(5, 2)
      local x = gb.randn(3, 5)
      call(model, x):sum():backward()
      call(function() return model(x):sum() end):backward()
      return grads(x:clone(), model)
    end)
  end)
  it("gives the same mask of dropout, and leaves the random stream as it was", function()
    same(function(call)
      local x = gb.randn(8, 16):requires_grad_()
      local y = call(function(v) return F.dropout(v, 0.5, { training = true }) * gb.rand(8, 16) end, x)
      gb.randn(5)
      y:sum():backward()
      return { x.grad, y:detach() }
    end)
  end)
  it("does not move the statistics of batch_norm again", function()
    same(function(call)
      local model = nn.Sequential(nn.BatchNorm1d(4), nn.ReLU(), nn.BatchNorm1d(4))
      local x = gb.randn(6, 4):requires_grad_()
      call(model, x):square():sum():backward()
      local all = grads(x, model)
      for _, b in ipairs(model:buffers()) do all[#all + 1] = b end
      return all
    end)
  end)
  it("lets statistics move between forward and backward, and what it makes itself", function()
    same(function(call)
      local model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))
      local x, w = gb.randn(6, 4):requires_grad_(), gb.randn(4):requires_grad_()
      local function part(v)
        local own = gb.zeros(4)
        own:add_(w)
        own:mul_(gb.tensor { 1, 2, 3, 4 })
        return model(v) * own
      end
      local a, b = call(part, x), call(part, x * 2)
      ;(a + b):sum():backward()
      return grads(x, model)
    end)
  end)
  it("is done with what it noted when the function fails", function()
    local x, w = gb.ones(4):requires_grad_(), gb.ones(4)
    local function fails(v) error({ v * w }) end
    expect(pcall(gb.recompute, fails, x)):to_be(false)
    coroutine.wrap(function() pcall(gb.recompute, fails, x) end)()
    local co = coroutine.create(function() gb.recompute(fails, x) end)
    expect(coroutine.resume(co)):to_be(false)
    local y = gb.recompute(function(v) return v * w end, x)
    expect(coroutine.status(co)):to_be("dead") -- still there, with what it noted
    y:sum():backward()
    expect(x.grad):to_be_close { 1, 1, 1, 1 }
  end)
  it("keeps the inputs only", function()
    local model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 64))
    local x = gb.randn(256, 64):requires_grad_()
    local function kept(call)
      local y = call(model, x)
      collectgarbage()
      collectgarbage()
      local bytes = gb.memory_stats().current.saved
      y:sum():backward()
      return bytes
    end
    local before = gb.memory_stats().current.saved
    local all, inputs = kept(plain) - before, kept(gb.recompute) - before
    expect(inputs <= 256 * 64 * 4 and all > 4 * 256 * 512 * 4):to_be(true)
  end)
  it("passes on other arguments and other results", function()
    local x = gb.ones(2):requires_grad_()
    local seen = {}
    local y, n, name, i, none = gb.recompute(function(v, k, t, missing, last)
      seen[#seen + 1] = { k, t, missing, last }
      return v * k, k + 1, t.name, gb.arange(3), nil
    end, x, 3, { name = "part" }, nil, true)
    expect(n):to_be(4)
    expect(name):to_be("part")
    expect(i.dtype):to_be("int64")
    expect(none):to_be(nil)
    y:sum():backward()
    expect(x.grad):to_be_close { 3, 3 }
    expect(#seen):to_be(2)
    expect(seen[2][1]):to_be(3)
    expect(seen[2][2]):to_be(seen[1][2])
    expect(seen[2][3]):to_be(nil)
    expect(seen[2][4]):to_be(true)
  end)
  it("has several outputs, of which some may go unused, or be an input", function()
    same(function(call)
      local x, w = gb.randn(4):requires_grad_(), gb.randn(4):requires_grad_()
      local h = x * 2
      local a, b, _, d = call(function(v) return v * w, v:exp(), v:sin(), v end, h)
      local loss = (a * b + d * 3):sum()
      loss:backward()
      return { x.grad, w.grad }
    end)
  end)
  it("nests", function()
    same(function(call)
      local one, two = nn.Linear(6, 6), nn.Linear(6, 6)
      local x = gb.randn(3, 6):requires_grad_()
      local function inner(v) return F.dropout(two(v):relu(), 0.3, { training = true }) end
      local function outer(v) return call(inner, one(v)) + call(inner, v) end
      call(outer, call(outer, x)):sum():backward()
      local all = grads(x, one)
      for _, p in ipairs(two:parameters()) do all[#all + 1] = p.grad end
      return all
    end)
  end)
  it("runs again for each backward of a graph that is retained, and not after it is freed", function()
    local x, runs = gb.ones(2):requires_grad_(), 0
    local y = gb.recompute(function(v) runs = runs + 1 return v * v end, x):sum()
    y:backward { retain_graph = true }
    y:backward()
    expect(x.grad):to_be_close { 4, 4 }
    expect(runs):to_be(3)
    expect(function() y:backward() end):to_fail("freed")
  end)
  it("works with gb.grad, of arguments and of what the function takes from elsewhere", function()
    same(function(call)
      local x, w = gb.randn(4):requires_grad_(), gb.randn(4):requires_grad_()
      local h = w:exp()
      local y = call(function(v) return (v * h + w):square() end, x:sin()):sum()
      return gb.grad(y, { x, w, h })
    end)
  end)
  it("has second derivatives", function()
    same(function(call)
      local x = gb.randn(4):requires_grad_()
      local g = gb.grad(call(function(v) return v:sin() * v end, x):sum(), x, { create_graph = true })
      g:square():sum():backward()
      return { x.grad, g:detach() }
    end)
  end)
end)

describe("recompute under autocast", function()
  it("runs again in the scope of the call, wherever backward runs", function()
    for _, dtype in ipairs { "float16", "bfloat16" } do
      same(function(call)
        local model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
        local x = gb.randn(4, 8):requires_grad_()
        local loss = amp.autocast({ dtype = dtype },
          function() return call(model, call(model, x)):float():square():mean() end)
        amp.autocast({ dtype = dtype == "float16" and "bfloat16" or "float16" }, function() loss:backward() end)
        return grads(x, model)
      end)
    end
  end)
  it("keeps a scope inside the function, and leaves no mode behind", function()
    same(function(call)
      local w = gb.randn(4, 4):requires_grad_()
      local y = call(function() return amp.autocast({ dtype = "float16" }, function() return w:matmul(w) end) end)
      expect(y.dtype):to_be("float16")
      y:float():sum():backward()
      expect(amp.is_enabled()):to_be(false)
      expect(gb.is_grad_enabled()):to_be(true)
      expect(gb.is_recomputing()):to_be(false)
      return { w.grad }
    end)
  end)
  it("trains with the GradScaler as the plain run does", function()
    same(function(call)
      local model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
      local opt, scaler = optim.AdamW(model:parameters(), { lr = 0.01 }), amp.GradScaler { init_scale = 1024 }
      for _ = 1, 4 do
        local x = gb.randn(16, 8)
        opt:zero_grad()
        local loss = amp.autocast({ dtype = "float16" }, function() return call(model, x):float():square():mean() end)
        scaler:scale(loss):backward()
        scaler:step(opt)
        scaler:update()
      end
      local all = {}
      for _, p in ipairs(model:parameters()) do all[#all + 1] = p:detach() end
      return all
    end)
  end)
end)

describe("recompute refuses", function()
  it("what is no function", function()
    expect(function() gb.recompute(3) end):to_fail("recompute: 'fn' must be a function, got 3")
    expect(function() gb.recompute() end):to_fail("recompute: 'fn' is missing")
  end)
  it("an argument that was changed in place since", function()
    local x = gb.ones(2):requires_grad_()
    local h = x * 1
    local y = gb.recompute(function(v) return v * v end, h):sum()
    gb.no_grad(function() h:add_(1) end)
    expect(function() y:backward() end):to_fail("recompute needs was changed in place")
  end)
  -- These used to be silent: the second run computed with the new values, and so did its gradient.
  local changed = "that a recomputed function reads was changed in place since its first run"
  it("weights that an optimizer stepped since", function()
    for _, enabled in ipairs { false, true } do
      local model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
      local opt = optim.SGD(model:parameters(), { lr = 0.1 })
      local x = gb.randn(2, 4)
      local function loss()
        return amp.autocast({ dtype = "bfloat16", enabled = enabled },
          function() return gb.recompute(model, x):float():sum() end)
      end
      local early = loss()
      loss():backward()
      opt:step()
      expect(function() early:backward() end):to_fail(changed)
      loss():backward() -- nothing of it is left behind
    end
  end)
  it("a bias alone, a captured tensor, and a number read from one", function()
    local x = gb.randn(2, 4):requires_grad_()
    local layer, mask, scale = nn.Linear(4, 4), gb.ones(4), gb.ones({}, { dtype = "float64" })
    local cases = {
      { layer.bias, function(v) return layer(v):relu() end },
      { mask, function(v) return v * mask:view(1, 4) end },
      { mask, function(v) return v * mask end },
      { scale, function(v) return v * scale:item() end },
    }
    for _, case in ipairs(cases) do
      local y = gb.recompute(case[2], x):sum()
      gb.no_grad(function() case[1]:add_(1) end)
      expect(function() y:backward() end):to_fail(changed)
    end
  end)
  it("what an inner part read", function()
    local x, w = gb.randn(4):requires_grad_(), gb.randn(4):requires_grad_()
    local function inner(v) return v * w end
    local function outer(v) return gb.recompute(inner, v:exp()):tanh() end
    local y = gb.recompute(outer, x):sum()
    gb.no_grad(function() w:mul_(2) end)
    expect(function() y:backward() end):to_fail(changed)
  end)
  it("vectors of spectral_norm that another forward moved", function()
    local layer = nn.utils.spectral_norm(nn.Linear(4, 4))
    local x = gb.randn(2, 4)
    local first, second = gb.recompute(layer, x):sum(), gb.recompute(layer, x):sum()
    second:backward()
    expect(function() first:backward() end):to_fail(changed)
  end)
  it("a function that does not do the same again", function()
    local x = gb.ones(2):requires_grad_()
    local function differing(first, second)
      local runs = 0
      return gb.recompute(function(v)
        runs = runs + 1
        if runs == 1 then return first(v) end
        return second(v)
      end, x)
    end
    local function double(v) return v * 2 end
    local cases = {
      { function() return "text" end, "value 1 was a tensor at first and string" },
      { function(v) return v * 2, 1 end, "returned 1 values the first time and 2 the second" },
      { function(v) return (v * 2):reshape(2, 1) end, "output 1 was float32 2 at first and float32 2x1" },
      { function(v) return (v * 2):double() end, "output 1 was float32 2 at first and float64 2" },
    }
    for _, case in ipairs(cases) do
      local loss = differing(double, case[1]):sum()
      expect(function() loss:backward() end):to_fail(case[2])
    end
  end)
  it("more than six floating results", function()
    local x = gb.ones(2):requires_grad_()
    expect(function() gb.recompute(function(v) return v * 1, v * 2, v * 3, v * 4, v * 5, v * 6, v * 7 end,
      x) end):to_fail("more than 6")
  end)
  it("nothing quietly: an error of the function is the caller's, in both runs", function()
    local x, fine = gb.ones(2):requires_grad_(), true
    local function part(v)
      if not fine then error({ code = 5 }) end
      return v * 2
    end
    local y = gb.recompute(part, x):sum()
    fine = false
    local ok, why = pcall(function() y:backward() end)
    expect(ok):to_be(false)
    expect(why.code):to_be(5)
    ok, why = pcall(gb.recompute, part, x)
    expect(ok):to_be(false)
    expect(why.code):to_be(5)
    expect(gb.is_grad_enabled()):to_be(true)
  end)
end)

describe("recompute entered again from its own second run", function()
  -- The nested walk used to let go of what the outer one was running from.
  it("is an error of the inner walk, and the outer one is right", function()
    local x, y, inner = gb.full({ 3 }, 2.0):requires_grad_(), nil, {}
    local function square(v)
      if gb.is_recomputing() then
        inner = { { pcall(y.backward, y) }, { pcall(y.backward, y, { retain_graph = true }) },
          { pcall(gb.grad, y, x) } }
      end
      return (v * v):sum()
    end
    y = gb.recompute(square, x)
    y:backward()
    expect(#inner):to_be(3)
    for _, result in ipairs(inner) do
      expect(result[1]):to_be(false)
      expect(tostring(result[2]):find("asked for that same gradient", 1, true)):to_be_truthy()
    end
    expect(x.grad):to_be_close { 4, 4, 4 }
  end)
  it("may walk other graphs, and free its arguments", function()
    local x = gb.full({ 3 }, 2.0):requires_grad_()
    local other = gb.ones(2):requires_grad_()
    local y = gb.recompute(function(v)
      if gb.is_recomputing() then (other * other):sum():backward() end
      local z = (v * v):sum()
      if gb.is_recomputing() then v:free() end
      return z
    end, x * 1)
    y:backward()
    expect(x.grad):to_be_close { 4, 4, 4 }
    expect(other.grad):to_be_close { 2, 2 }
  end)
  it("must not give or use its own first result", function()
    for _, body in ipairs { function(_, y) return y end, function(v, y) return y * v end } do
      for _, retain in ipairs { false, true } do
        local x, y = gb.ones(1):requires_grad_(), nil
        y = gb.recompute(function(v) return y and body(v, y) or v * 2 end, x)
        expect(function() y:backward { retain_graph = retain } end):to_fail(retain and
          "a result of its own first run" or nil)
      end
    end
  end)
end)

describe("recompute without gradients", function()
  it("only calls", function()
    local x = gb.ones(2):requires_grad_()
    local y = gb.no_grad(function() return gb.recompute(function(v) return v * 2 end, x) end)
    expect(y.requires_grad):to_be(false)
    expect(gb.recompute(function(v) return v * 2 end, gb.ones(2)).requires_grad):to_be(false)
  end)
end)

describe("a part that writes what it reads", function()
  local w = gb.full({ 4 }, 3.0):requires_grad_()
  local function gradient(fn, ...)
    w.grad = nil
    fn(...):sum():backward()
    return w.grad
  end
  it("may do so again, where nobody else did in between", function()
    local buffer, cache, mask = gb.zeros(4), gb.zeros(3, 4), gb.ones(4)
    local x = gb.arange(4):float():requires_grad_()
    local parts = {
      function(v) buffer:copy_(v:detach()) return buffer * w end,
      function(v) gb.no_grad(function() cache[2] = v end) return cache * w end,
      function(v) mask:fill_(0.5) return v * mask * w end,
      function(v) gb.no_grad(function() w:clamp_(-1, 1) end) return v * w end,
    }
    for _, part in ipairs(parts) do
      expect(gradient(gb.recompute, part, x)):to_equal_bits(gradient(part, x))
    end
    local rows = gb.tensor({ 1, 2, 3 }, { dtype = "int64" })
    local table_of = gb.nn.Embedding(10, 4, { max_norm = 0.5 })
    gb.recompute(table_of, rows):sum():backward()
    expect(table_of.weight.grad:sum():item()):to_be(12.0)
  end)
  it("may overwrite a place that another part has overwritten", function()
    local buffer, x = gb.zeros(4), gb.ones(4):requires_grad_()
    local function part(v) buffer:copy_(v:detach()) return v * buffer * w end
    gb.no_grad(function() w:fill_(3) end)
    gb.recompute(part, gb.recompute(part, x)):sum():backward()
    expect(x.grad:tolist()[1]):to_be(27.0)
  end)
  it("is told where somebody else changed it in between", function()
    local l = gb.nn.Linear(2, 2)
    local y = gb.recompute(function(x)
      gb.no_grad(function() l.weight:clamp_(-0.1, 0.1) end)
      return l(x)
    end, gb.ones(1, 2):requires_grad_())
    gb.no_grad(function() l.weight:mul_(2) end)
    expect(function() y:sum():backward() end):to_fail("was changed in place since its first run")
  end)
end)

gb.test.finish()
