-- test_autograd.lua - gradients as a recipe uses them: backward, gb.grad, scopes (in coroutines too), hooks, retained
-- gradients, functions of its own, accumulation, and what goes wrong when a tensor is changed in place.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local function leaf(...) return gb.tensor({ ... }, { dtype = "float64", requires_grad = true }) end
local function expect_grad(x, ...) expect(x.grad):to_be_close({ ... }, 1e-9) end

describe("backward", function()
  it("fills and accumulates grad", function()
    local x = leaf(1, 2, 3)
    expect(x.grad):to_be(nil)
    x:square():sum():backward()
    expect_grad(x, 2, 4, 6)
    x:sum():backward()
    expect_grad(x, 3, 5, 7)
    x.grad = nil
    expect(x.grad):to_be(nil)
    x:sum():backward()
    expect_grad(x, 1, 1, 1)
  end)
  it("gives back the very tensor that grad was set to", function()
    local x, grad = leaf(1, 2), gb.tensor({ 10, 20 }, { dtype = "float64" })
    x.grad = grad
    expect(rawequal(x.grad, grad)):to_be(true)
    x:square():sum():backward()
    expect(grad):to_be_close({ 12, 24 }, 1e-9)
    expect(function() x.grad = 5 end):to_fail("tensor")
  end)
  it("takes a gradient, by place or by name", function()
    local x = leaf(1, 2)
    x:mul(3):backward(gb.tensor({ 1, 10 }, { dtype = "float64" }))
    expect_grad(x, 3, 30)
    x:mul(3):backward { gradient = gb.tensor({ 1, 1 }, { dtype = "float64" }) }
    expect_grad(x, 6, 33)
    expect(function() x:mul(3):backward(gb.ones(3)) end):to_fail("shape")
    expect(function() x:mul(3):backward() end):to_fail("shape 2")
    expect(function() x:mul(3):backward { retain = true } end):to_fail("retain")
    expect(function() x:mul(3):backward(5) end):to_fail("backward")
  end)
  it("frees the graph, unless told to keep it", function()
    local x = leaf(1, 2)
    local y = x:exp():sum()
    y:backward(nil, { retain_graph = true })
    y:backward()
    expect(function() y:backward() end):to_fail("retain_graph")
  end)
  it("says why there is nothing to do", function()
    expect(function() gb.ones(1):backward() end):to_fail("does not require")
    local x = leaf(1)
    expect(function() gb.no_grad(function() return x * 2 end):backward() end):to_fail("no_grad")
  end)
  it("of a graph of many uses adds up", function()
    local x = leaf(2)
    local y = x
    for _ = 1, 10 do y = y + y end
    y:sum():backward()
    expect_grad(x, 1024)
  end)
  it("of a long loop does not recurse", function()
    local x = leaf(1)
    local y = x
    for _ = 1, 20000 do y = y * 1 end
    y:sum():backward()
    expect_grad(x, 1)
  end)
  it("an assigned gradient is used and checked", function()
    local x = leaf(1, 2)
    x.grad = gb.tensor({ 5, 5 }, { dtype = "float64" })
    x:sum():backward()
    expect_grad(x, 6, 6)
    expect(function() x.grad = gb.ones(3) end):to_fail("shape")
    expect(function() x.grad = gb.ones(2) end):to_fail("the gradient is float32, the tensor float64; convert it \z
      with g:to('float64')")
    expect(function() x.grad = gb.ones(2):long() end):to_fail("the gradient is int64")
    local half = gb.nn.Parameter(gb.zeros(2):half())
    half.grad = gb.ones(2):half()
    half.grad = gb.ones(2) -- as an optimizer keeps it
    expect(half.grad.dtype):to_be("float32")
    expect(function() half.grad = gb.ones(2):double() end):to_fail("the gradient is float64, the tensor float16")
    local opt = gb.optim.SGD({ half }, { lr = 1 })
    half.grad = gb.ones(2):half()
    expect(half.grad.dtype):to_be("float32")
    opt:step()
    expect(half[1]:item()):to_be(-1.0)
  end)
  it("only floating leaves require gradients", function()
    expect(function() gb.arange(3):requires_grad_() end):to_fail("int64")
    expect(function() gb.tensor({ true }, { requires_grad = true }) end):to_fail("bool")
    local x = leaf(1)
    expect((x * 2).requires_grad):to_be(true)
    expect((x * 2).is_leaf):to_be(false)
    expect((x * 2):detach().requires_grad):to_be(false)
    expect(function() (x * 2):requires_grad_(false) end):to_fail("detach")
    expect(x:requires_grad_(false)):to_be(x)
    expect((x * 2).requires_grad):to_be(false)
    expect(x:gt(0).requires_grad):to_be(false)
  end)
end)

-- How many times longer work(4 * n) takes than work(n): 4 where time grows with n, 16 where it does with its square.
local function growth(work)
  local function least(n)
    local time = math.huge
    for _ = 1, 3 do
      local run = work(n)
      collectgarbage()
      local start = os.clock()
      run()
      time = math.min(time, os.clock() - start)
    end
    return time
  end
  return least(20000) / least(5000)
end

describe("gb.grad", function()
  it("gives one tensor for one, a list for a list, and touches no .grad", function()
    local x, y = leaf(1, 2), leaf(3, 4)
    local z = (x * y):sum()
    expect(gb.grad(z, x, { retain_graph = true })):to_be_close({ 3, 4 })
    local list = gb.grad(z, { x, y })
    expect(list[1]):to_be_close({ 3, 4 })
    expect(list[2]):to_be_close({ 1, 2 })
    expect(x.grad):to_be(nil)
    expect(y.grad):to_be(nil)
  end)
  it("allow_unused", function()
    local x, y = leaf(1), leaf(2)
    expect(function() gb.grad(x:sum(), { x, y }) end):to_fail("allow_unused")
    local list = gb.grad(x:sum(), { x, y }, { allow_unused = true })
    expect(list[2]):to_be(nil)
    expect(list[1]:item()):to_be(1.0)
  end)
  it("gives inputs that stand there twice the same gradient, and adds to leaves once", function()
    local x, y = leaf(1, 2), leaf(3, 4)
    local z = x * y
    local list = gb.grad((z * z):sum(), { z, x, z, y, x }, { retain_graph = true })
    expect(list[1]):to_be_close({ 6, 16 })
    expect(list[3]):to_be_close({ 6, 16 })
    expect(list[2]):to_be_close({ 18, 64 })
    expect(list[5]):to_be_close({ 18, 64 })
    z:sum():backward { inputs = { x, y, x } }
    expect(x.grad):to_be_close({ 3, 4 })
  end)
  -- Each input used to be looked for among all of them.
  it("takes a time that grows with the number of inputs, not with its square", function()
    expect(growth(function(n)
      local inputs = {}
      for i = 1, n do inputs[i] = leaf(1) end
      local y = gb.cat(inputs):sum()
      return function()
        gb.grad(y, inputs, { retain_graph = true })
        y:backward { inputs = inputs }
      end
    end) < 8):to_be(true)
  end)
  it("grad_outputs, several outputs, results on the way", function()
    local x = leaf(1, 2)
    local y = x * x
    local g = gb.grad({ y, y:sum() }, { x, y },
      { grad_outputs = { gb.tensor({ 1, 0 }, { dtype = "float64" }), gb.tensor(1.0, { dtype = "float64" }) } })
    expect(g[1]):to_be_close({ 4, 4 })
    expect(g[2]):to_be_close({ 2, 1 })
    expect(function() gb.grad({ y, y }, x, { grad_outputs = { y } }) end):to_fail("grad_outputs")
  end)
  it("create_graph: second and third derivatives", function()
    local x = leaf(2, 3)
    local first = gb.grad((x ^ 4):sum(), x, { create_graph = true })
    local second = gb.grad(first:sum(), x, { create_graph = true })
    local third = gb.grad(second:sum(), x)
    expect(first):to_be_close({ 32, 108 })
    expect(second):to_be_close({ 48, 108 })
    expect(third):to_be_close({ 48, 72 })
  end)
  it("leaky_relu: one kernel, with the bits of what can be differentiated again", function()
    for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16" } do
      local values, up = gb.randn(100):to(dtype), gb.randn(100):to(dtype)
      values:narrow(1, 1, 4):copy_(gb.tensor { 0, -0.0, 1 / 0, -1 / 0 })
      local x = values:requires_grad_()
      local function slope(again)
        local y = gb.nn.functional.leaky_relu(x, 0.2)
        return gb.grad(y, x, { grad_outputs = up, create_graph = again }):detach()
      end
      expect(slope(false)):to_equal_bits(slope(true))
      local y = gb.nn.functional.leaky_relu(x, 0.2)
      local report = gb.profile(function() y:backward(up) end, { print = false })
      local backward = 0
      for _, row in ipairs(report.ops) do if row.phase == "backward" then backward = backward + row.calls end end
      expect(backward):to_be(1)
    end
  end)
  it("of what has no second derivative names it", function()
    local x = leaf(1, 2)
    expect(function() gb.grad(gb.nn.functional.dropout(x):sum(), x, { create_graph = true }) end):to_fail("dropout")
  end)
  it("refuses other values", function()
    local x = leaf(1)
    expect(function() gb.grad(x:sum()) end):to_fail("inputs")
    expect(function() gb.grad(5, x) end):to_fail("outputs")
    expect(function() gb.grad(x:sum(), { 5 }) end):to_fail("inputs")
    expect(function() gb.grad(x:sum(), x, { allow = true }) end):to_fail("allow_unused")
    expect(function() gb.grad(x:sum(), gb.ones(1)) end):to_fail("input 1")
  end)
end)

describe("in place", function()
  it("on a leaf names the cure, and works under no_grad", function()
    local x = leaf(1, 2)
    expect(function() x:add_(1) end):to_fail("no_grad")
    expect(function() x[1] = 0 end):to_fail("no_grad")
    expect(function() x:view(2, 1):mul_(2) end):to_fail("no_grad")
    gb.no_grad(function() x:add_(1) end)
    expect(x):to_be_close({ 2, 3 })
    expect(x.requires_grad):to_be(true)
  end)
  it("on what backward needs is an error, not a wrong gradient", function()
    local x = leaf(1, 2)
    local y = x:exp()
    local z = (y * y):sum()
    y:add_(1)
    expect(function() z:backward() end):to_fail("changed in place")
    local w = leaf(1, 2)
    local p = (w * w):sum()
    gb.no_grad(function() w:mul_(2) end)
    expect(function() p:backward() end):to_fail("changed in place")
  end)
  it("on a result is part of the graph", function()
    local x = leaf(1, 2)
    local y = x * 2
    y:sin_():mul_(3):floor_():add_(x):mul_(x)
    y:sum():backward()
    expect_grad(x, math.floor(3 * math.sin(2)) + 2, math.floor(3 * math.sin(4)) + 4)
    local a = leaf(1, 2)
    local b = a * 1
    b:fill_(7)
    b:sum():backward()
    expect_grad(a, 0, 0)
    local c = leaf(0.4, 2.6)
    local d = c * 1
    d:zero_()
    d:add_(c):sum():backward()
    expect_grad(c, 1, 1)
  end)
  it("copy_ hands the gradient to the source", function()
    local x, y = leaf(1, 2), leaf(3, 4)
    local z = x * 1
    z:copy_(y)
    z:square():sum():backward()
    expect_grad(y, 6, 8)
    expect_grad(x, 0, 0)
  end)
  it("a dtype that cannot hold the result is an error", function()
    expect(function() gb.arange(3):add_(0.5) end):to_fail("float32")
    expect(function() gb.ones(2):add_(gb.ones(3, 2)) end):to_fail("shape")
  end)
end)

describe("scopes", function()
  it("no_grad as a function passes arguments and results", function()
    local x = leaf(1)
    local a, b, c = gb.no_grad(function(p, q) return p * 2, q, nil end, x, 5)
    expect(a.requires_grad):to_be(false)
    expect(b):to_be(5)
    expect(c):to_be(nil)
    expect(gb.is_grad_enabled()):to_be(true)
  end)
  it("as values, nested", function()
    local x = leaf(1)
    do
      local _ <close> = gb.no_grad()
      expect((x * 2).requires_grad):to_be(false)
      do
        local _ <close> = gb.enable_grad()
        expect((x * 2).requires_grad):to_be(true)
      end
      expect(gb.is_grad_enabled()):to_be(false)
    end
    expect(gb.is_grad_enabled()):to_be(true)
  end)
  it("close is idempotent, and collecting a scope changes nothing", function()
    local scope = gb.no_grad()
    scope:close()
    scope:close()
    expect(gb.is_grad_enabled()):to_be(true)
    coroutine.wrap(function() -- what it leaves open goes with it
      local _ = gb.no_grad()
      _ = nil -- luacheck: ignore
      collectgarbage()
      expect(gb.is_grad_enabled()):to_be(false)
    end)()
    expect(gb.is_grad_enabled()):to_be(true)
  end)
  it("closed out of order, the end is as it was before all", function()
    local outer, within = gb.no_grad(), gb.enable_grad()
    outer:close()
    expect(gb.is_grad_enabled()):to_be(true)
    within:close()
    expect(gb.is_grad_enabled()):to_be(true)
    local off, on = gb.no_grad(), gb.enable_grad()
    on:close()
    expect(gb.is_grad_enabled()):to_be(false)
    off:close()
    expect(gb.is_grad_enabled()):to_be(true)
  end)
  it("an error inside restores what was", function()
    expect(function() gb.no_grad(function() error("inside") end) end):to_fail("inside")
    expect(gb.is_grad_enabled()):to_be(true)
    pcall(function()
      local _ <close> = gb.no_grad()
      error("inside")
    end)
    expect(gb.is_grad_enabled()):to_be(true)
  end)
  it("refuse what is no function", function()
    expect(function() gb.no_grad(5) end):to_fail("function")
    expect(gb.is_grad_enabled()):to_be(true)
    expect(function() gb.set_grad_enabled("no") end):to_fail("true or false")
  end)
  it("belong to their coroutine", function()
    local co = coroutine.create(function()
      local before = gb.is_grad_enabled()
      local _ <close> = gb.no_grad()
      coroutine.yield(before)
      return gb.is_grad_enabled()
    end)
    local _, before = coroutine.resume(co)
    expect(before):to_be(true)
    expect(gb.is_grad_enabled()):to_be(true) -- it yielded inside its own scope
    local _, inside = coroutine.resume(co)
    expect(inside):to_be(false)
    expect(gb.is_grad_enabled()):to_be(true)
  end)
  it("a coroutine starts with the modes of whoever resumes it first", function()
    local co = coroutine.wrap(function()
      coroutine.yield(gb.is_grad_enabled())
      coroutine.yield(gb.is_grad_enabled())
    end)
    gb.no_grad(function() expect(co()):to_be(false) end)
    expect(co()):to_be(false) -- and keeps them
    expect(gb.is_grad_enabled()):to_be(true)
  end)
  it("a function in a scope may yield", function()
    local x = leaf(1)
    local co = coroutine.wrap(function()
      return gb.no_grad(function()
        local seen = coroutine.yield("first")
        return (x * 2).requires_grad, seen
      end)
    end)
    expect(co()):to_be("first")
    expect((x * 2).requires_grad):to_be(true)
    local grad, seen = co("second")
    expect(grad):to_be(false)
    expect(seen):to_be("second")
  end)
  it("a coroutine that dies in a scope harms nobody", function()
    local co = coroutine.create(function()
      local _ <close> = gb.no_grad()
      error("dies")
    end)
    coroutine.resume(co)
    coroutine.close(co)
    local left = coroutine.create(function()
      local _ <close> = gb.no_grad()
      coroutine.yield()
    end)
    coroutine.resume(left)
    left = nil -- luacheck: ignore
    collectgarbage()
    expect(gb.is_grad_enabled()):to_be(true)
  end)
end)

describe("hooks", function()
  it("on a result see, and may replace, its gradient", function()
    local x = leaf(1, 2)
    local y = x * 3
    local seen
    y:register_hook(function(g) seen = g:clone() end)
    y:register_hook(function(g) return g * 10 end)
    y:sum():backward()
    expect(seen):to_be_close({ 1, 1 })
    expect_grad(x, 30, 30)
  end)
  it("on a leaf are called once, with the whole gradient", function()
    local x = leaf(1, 2)
    local calls = {}
    x:register_hook(function(g)
      calls[#calls + 1] = g:tolist()
      return g:clamp(-3, 3)
    end)
    x:mul(2):add(x * 4):sum():backward()
    expect(#calls):to_be(1)
    expect(calls[1]):to_be_close({ 6, 6 })
    expect_grad(x, 3, 3)
  end)
  -- Each hook used to be looked for from the first one on, and each leaf among those with hooks.
  it("take a time that grows with their number, not with its square", function()
    local function nothing() end
    expect(growth(function(n)
      local x = leaf(1)
      return function()
        for _ = 1, n do x:register_hook(nothing) end
        x:sum():backward()
      end
    end) < 8):to_be(true)
    expect(growth(function(n)
      local leaves = {}
      for i = 1, n do
        leaves[i] = leaf(1)
        leaves[i]:register_hook(nothing)
      end
      local y = gb.cat(leaves):sum()
      return function() y:backward() end
    end) < 8):to_be(true)
  end)
  it("may register and remove hooks while they run", function()
    local x, log, handles = leaf(1), {}, {}
    local function hang(name, fn)
      handles[name] = x:register_hook(function()
        log[#log + 1] = name
        if fn then fn() end
      end)
    end
    hang("a", function() handles.b:remove() end) -- the next one
    hang("b")
    hang("c", function() handles.c:remove() end) -- itself
    hang("d", function()
      handles.a:remove()
      handles.d:remove()
      handles.e:remove() -- the last one
      hang("f", function() if #log < 6 then hang("g") end end)
    end)
    hang("e")
    x:sum():backward()
    expect(table.concat(log)):to_be("acdfg")
    x:sum():backward()
    expect(table.concat(log)):to_be("acdfgfg")
    handles.g:remove()
    hang("h")
    x:sum():backward()
    expect(table.concat(log)):to_be("acdfgfgfh")
    handles.f:remove()
    handles.h:remove()
    hang("i")
    x:sum():backward()
    expect(table.concat(log)):to_be("acdfgfgfhi")
  end)
  it("can be removed", function()
    local x = leaf(1)
    local count = 0
    local handle = x:register_hook(function() count = count + 1 end)
    x:sum():backward()
    handle:remove()
    handle:remove()
    x:sum():backward()
    expect(count):to_be(1)
  end)
  it("outlive their handle, and go with their tensor", function()
    local gone = setmetatable({}, { __mode = "k" })
    do
      local x = leaf(1)
      local mark = {}
      gone[mark] = true
      x:register_hook(function() return mark and nil end)
      collectgarbage()
      x:sum():backward()
    end
    collectgarbage()
    collectgarbage()
    expect(next(gone)):to_be(nil)
  end)
  it("an error in one reaches the recipe, and the graph is freed", function()
    local x = leaf(1, 2)
    x:exp():register_hook(function() end)
    local y = x:exp()
    y:register_hook(function() error("in the hook") end)
    expect(function() y:sum():backward() end):to_fail("in the hook")
    expect(gb.is_grad_enabled()):to_be(true)
    local z = x:exp()
    z:register_hook(function() error({ code = 5 }) end)
    local ok, why = pcall(function() z:sum():backward() end)
    expect(ok):to_be(false)
    expect(type(why) == "table" and why.code):to_be(5) -- unchanged
  end)
  it("what they return is checked", function()
    local x = leaf(1, 2)
    local y = x * 2
    y:register_hook(function() return 5 end)
    expect(function() y:sum():backward() end):to_fail("hook")
    local z = x * 2
    z:register_hook(function() return gb.ones(3) end)
    expect(function() z:sum():backward() end):to_fail("shape")
    expect(function() gb.ones(1):register_hook(print) end):to_fail("require")
    expect(function() x:register_hook(5) end):to_fail("function")
  end)
  it("run ops, without being recorded", function()
    local x = leaf(1, 2)
    local y, recorded = x * 2, nil
    y:register_hook(function(g) recorded = (g * x).requires_grad end)
    y:sum():backward()
    expect(recorded):to_be(false)
  end)
  it("retain_grad keeps the gradient of a result", function()
    local x = leaf(1, 2)
    local y = x * 2
    expect(y:retain_grad()):to_be(y)
    y:square():sum():backward()
    expect_grad(y, 4, 8)
    expect((x * 2).grad):to_be(nil)
    expect(function() gb.ones(1):retain_grad() end):to_fail("require")
  end)
end)

describe("gb.Function", function()
  local cube = gb.Function {
    name = "cube",
    forward = function(ctx, x, scale)
      ctx:save_for_backward(x)
      ctx.scale = scale
      return x * x * x * scale
    end,
    backward = function(ctx, g)
      local x = ctx:saved_tensors()
      return g * x * x * (3 * ctx.scale)
    end,
  }
  it("has the gradient that it says", function()
    local x = leaf(1, 2)
    local y = cube(x, 2)
    expect(y):to_be_close({ 2, 16 })
    expect(y.requires_grad):to_be(true)
    y:sum():backward()
    expect_grad(x, 6, 24)
  end)
  it("records nothing where nothing needs it", function()
    expect(cube(gb.ones(2), 1).requires_grad):to_be(false)
    gb.no_grad(function() expect(cube(leaf(1), 1).requires_grad):to_be(false) end)
  end)
  it("several inputs and outputs, with zeros for what has no gradient", function()
    local seen
    local both = gb.Function {
      forward = function(_, a, b) return a + b, a * 1 end,
      backward = function(_, ga, gb_) seen = { ga, gb_ } return ga, ga * 2 end,
    }
    local a, b = leaf(1, 2), leaf(3, 4)
    local sum = both(a, b)
    sum:sum():backward()
    expect_grad(a, 1, 1)
    expect_grad(b, 2, 2)
    expect(seen[2]):to_be_close({ 0, 0 })
  end)
  it("what backward returns is checked", function()
    local function with(result)
      return gb.Function { forward = function(_, x) return x * 2 end, backward = function() return result end }
    end
    local x = leaf(1, 2)
    expect(function() with(5)(x):sum():backward() end):to_fail("backward returned")
    expect(function() with(gb.ones(3))(x):sum():backward() end):to_fail("shape")
    with(nil)(x):sum():backward()
    expect(x.grad):to_be(nil)
    local half = gb.Function { forward = function(_, a, b) return a * b end,
      backward = function(_, g) return g end }
    expect(function() half(x, x):sum():backward() end):to_fail("argument 2 of forward needs one too; return nil")
    half(x, gb.ones(2)):sum():backward() -- the second wants none
    expect_grad(x, 1, 1)
    expect(function() gb.Function { forward = print } end):to_fail("backward")
    expect(function() gb.Function { forward = print, backward = print, nam = "x" } end):to_fail("name")
    expect(function() gb.Function { forward = function() return 5 end, backward = print }(x) end):to_fail("tensor")
  end)
  it("an error inside reaches the recipe", function()
    local bad = gb.Function { forward = function(_, x) return x * 1 end,
      backward = function() error("no way back") end }
    expect(function() bad(leaf(1)):sum():backward() end):to_fail("no way back")
    local worse = gb.Function { forward = function() error("no way forth") end, backward = print }
    expect(function() worse(leaf(1)) end):to_fail("no way forth")
    expect(gb.is_grad_enabled()):to_be(true)
  end)
  it("notices a saved tensor that was changed", function()
    local x = leaf(1, 2)
    local y = x * 1
    local z = cube(y, 1)
    y:add_(1)
    expect(function() z:sum():backward() end):to_fail("changed in place")
  end)
  it("is freed with its graph", function()
    local gone = setmetatable({}, { __mode = "k" })
    do
      local f = gb.Function { forward = function(ctx, x)
        ctx.mark = {}
        gone[ctx.mark] = true
        local y = x * 2
        ctx:save_for_backward(x, y)
        return y
      end, backward = function(_, g) return g * 2 end }
      f(leaf(1)):sum()
    end
    collectgarbage()
    collectgarbage()
    expect(next(gone)):to_be(nil)
  end)
end)

describe("gradients of several views of one tensor", function()
  -- Views that tile, overlap, skip, turn and repeat; the loss weighs every element of each with other whole numbers, so
  -- that sums are exact.
  local function views(x)
    return { x:view(5, 4):select(1, 5), x:narrow(1, 1, 2), x:narrow(1, 3, 2), x:select(2, 1), x:select(-1, 5),
      x:slice(2, 1, 5, 2), x:diagonal(), x:narrow(2, 2, 3):t() }
  end
  local function loss(x)
    local sum = gb.zeros(1, { dtype = x.dtype })
    for i, v in ipairs(views(x)) do
      local weights = gb.arange(v:numel(), { dtype = x.dtype, device = v.device }):view(v.shape) + i
      sum = sum + (v * weights):sum()
    end
    return sum
  end
  local function base(dtype) return gb.arange(20, { dtype = dtype or "float32" }):view(4,
    5):clone():requires_grad_() end
  local function expected() -- by a graph of its own, in which nothing is put together in place
    local x = base()
    return gb.grad(loss(x), { x }, { create_graph = true })[1]:detach()
  end
  it("are put together in the first one's memory", function()
    local x = base()
    local report = gb.amp.audit(gb.nn.Identity(), function() loss(x * 1):backward() end, { print = false })
    local zeros, adds = 0, 0
    for _, row in ipairs(report.rows) do
      if row.phase == "backward" and row.op == "as_strided_backward" then zeros = zeros + row.calls end
      if row.phase == "backward" and row.op:match("^add_?$") then adds = adds + row.calls end
    end
    expect(zeros):to_be(0) -- the first is copied to its place, and what lies beside it is cleared
    expect(adds):to_be(7)
    expect(x.grad):to_be_close(expected(), 0)
  end)
  it("are those of a graph that makes them one by one, for a leaf, a result, and an optimizer's parameter", function()
    local whole = expected()
    for _, dtype in ipairs { "float32", "float64", "bfloat16" } do
      local x = base(dtype)
      loss(x):backward()
      expect(x.grad:to("float32")):to_be_close(whole, 0)
      loss(x):backward() -- now into a sum that is there
      expect(x.grad:to("float32")):to_be_close(whole * 2, 0)
      local y = base(dtype)
      loss(y * 1):backward()
      expect(y.grad:to("float32")):to_be_close(whole, 0)
    end
    local p = base()
    local opt = gb.optim.SGD({ p }, { lr = 1 })
    for _ = 1, 2 do
      opt:zero_grad()
      loss(p):backward()
      expect(p.grad):to_be_close(whole, 0)
    end
    loss(p):backward()
    expect(p.grad):to_be_close(whole * 2, 0)
  end)
  it("leave a gradient alone that somebody else sees", function()
    local x = leaf(1, 2, 3)
    local y = x * 1
    local z, given = y + y:narrow(1, 2, 1), gb.ones(3, { dtype = "float64" })
    z:backward(given) -- arrives at y as it is, before the narrow's
    expect(given):to_be_close({ 1, 1, 1 }, 0)
    expect_grad(x, 1, 4, 1)
    x.grad = nil
    local kept, total
    y = x * 1
    local first = y:narrow(1, 1, 2)
    local second = y:narrow(1, 2, 2)
    second:register_hook(function(g) kept = g end)
    y:register_hook(function(g) total = g end)
    y:retain_grad()
    local sum = first:sum() + second:sum() * 5
    sum:backward()
    expect(kept):to_be_close({ 5, 5 }, 0)
    expect(total):to_be_close({ 1, 6, 5 }, 0)
    expect(y.grad):to_be_close({ 1, 6, 5 }, 0)
    expect_grad(x, 1, 6, 5)
  end)
  it("meet a leaf's hooks as one sum, and its gradient in place", function()
    local x, calls, seen = leaf(1, 2, 3), 0, nil
    local function run() (x:narrow(1, 1, 2):sum() + x:narrow(1, 2, 2):sum() * 5):backward() end
    run()
    local grad = x.grad
    run()
    expect(rawequal(x.grad, grad)):to_be(true)
    expect(grad):to_be_close({ 2, 12, 10 }, 0)
    x:register_hook(function(g) calls, seen = calls + 1, g end)
    run()
    expect(calls):to_be(1)
    expect(seen):to_be_close({ 1, 6, 5 }, 0)
    expect(grad):to_be_close({ 3, 18, 15 }, 0)
  end)
  it("are seen to be changed by what had saved the sum", function()
    local x, scale = leaf(1, 2, 3), leaf(1, 1, 1)
    x.grad = gb.ones(3, { dtype = "float64" })
    local y = (x.grad * scale):sum()
    x:narrow(1, 1, 2):sum():backward()
    expect(function() y:backward() end):to_fail("changed in place")
  end)
end)

describe("memory", function()
  it("a loop that drops its graphs is flat", function()
    local x = leaf(1, 2, 3)
    local function round()
      for _ = 1, 200 do
        local y = x:exp():mul(2):sum()
        y:backward()
      end
      collectgarbage()
      collectgarbage()
      return gb.memory_stats().current_total
    end
    round()
    local before = round()
    expect(round()):to_be(before)
  end)
  it("a graph cannot be made to hold itself through a leaf that was one", function()
    local x = gb.ones(1000):requires_grad_()
    local y = x * 2
    x:requires_grad_(false)
    expect(function() x:mul_(y) end):to_fail("a tensor that once required gradients is changed in place")
    gb.no_grad(function() x:mul_(y) end) -- records nothing
    x:mul_(3)                            -- requires nothing
    expect(x[1]:item()):to_be(6.0)
    local z = x:clone():mul_(y:sum())
    expect(z.requires_grad):to_be(true)
  end)
  it("what was saved is freed as backward passes", function()
    local x = gb.randn(256, 256):requires_grad_()
    local y = x
    for _ = 1, 8 do y = y:tanh() end
    local loss = y:sum()
    expect(gb.memory_stats().current.saved > 7 * 256 * 256 * 4):to_be(true)
    loss:backward()
    expect(gb.memory_stats().current.saved):to_be(0)
  end)
end)

gb.test.finish()
