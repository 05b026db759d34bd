-- test_recurrent.lua - RNN, LSTM, GRU and their cells against PyTorch's results and gradients in float64, in float32
-- and under autocast; sequences of unlike lengths; first values, errors, and that a call may begin with what another
-- ended with.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, amp, F = gb.nn, gb.amp, gb.nn.functional

local goldens = dofile("tests/lua/goldens.lua")

local function stored(row, name, dtype)
  local text = row.tensors[name]
  return text and goldens.tensor(text):to(dtype):to(gb.get_default_device())
end

-- The options of a row without what the call takes.
local function options_of(row, dtype)
  local o = { dtype = dtype }
  for name, value in pairs(row.options) do
    if name ~= "lengths" then o[name] = value end
  end
  return o
end

-- Results and gradients of a row by name, computed in dtype, under autocast if a scope is named.
local function run(row, dtype, scope)
  local module = nn[row.kind](4, 5, options_of(row, dtype))
  local weights = {}
  for name in pairs(row.tensors) do
    local weight = name:match("^weight%.(.+)$")
    if weight then weights[weight] = stored(row, name, dtype) end
  end
  module:load_state_dict(weights)
  local x, h, c = stored(row, "x", dtype), stored(row, "state0", dtype), stored(row, "state1", dtype)
  x:requires_grad_() h:requires_grad_()
  if c then c:requires_grad_() end
  local cell = row.kind:find("Cell") ~= nil
  local function forward()
    if cell then return { module(x, c and { h, c } or h) } end
    local y, state = module(x, c and { h, c } or h, { lengths = row.options.lengths })
    return c and { y, state[1], state[2] } or { y, state }
  end
  local results = scope and amp.autocast(scope, forward) or forward()
  local loss = 0
  for i, result in ipairs(results) do loss = loss + (result:to(dtype) * stored(row, "up" .. i - 1, dtype)):sum() end
  loss:backward()
  local made = { dx = x.grad, dstate0 = h.grad, dstate1 = c and c.grad }
  for i, result in ipairs(results) do made["out" .. i - 1] = result:detach() end
  for name, p in module:named_parameters() do made["dweight." .. name] = p.grad end
  return made
end

-- Every tensor is at most so far from the row's float64 one, by its norm.
local function expect_near(row, made, most)
  for name, value in pairs(made) do
    local exact = stored(row, name, "float64")
    local distance = ((value:to("float64") - exact):norm() / exact:norm()):item()
    if not (distance <= most(name)) then error(("%s: off by %g, at most %g"):format(name, distance, most(name))) end
  end
end

describe("recurrent layers", function()
  for _, row in ipairs(goldens.read("training", { "recurrent" })) do
    -- Sums of at most some hundred terms of one magnitude: 1e-13 and 2e-6 of each tensor's norm.
    for dtype, most in pairs { float64 = 1e-13, float32 = 2e-6 } do
      it(("%s in %s"):format(row.name, dtype), function()
        local made = run(row, dtype)
        expect_near(row, made, function() return most end)
        for _, value in pairs(made) do expect(value.dtype):to_be(dtype) end
      end)
    end
    -- At most twice as far from float64 as PyTorch's autocast; where that is lucky, two roundings to 16 bits per
    -- element.
    for scope, unit in pairs { bfloat16 = 2.0 ^ -7, float16 = 2.0 ^ -10 } do
      it(("%s under %s autocast"):format(row.name, scope), function()
        expect_near(row, run(row, "float32", scope),
          function(name) return math.max(2 * row.errors[scope][name], unit) end)
      end)
    end
  end

  it("begin with uniform weights of +-1 / sqrt(hidden), by PyTorch's names", function()
    local lstm = nn.LSTM(3, 16, { num_layers = 2, bidirectional = true, proj_size = 4 })
    local names, shapes = {}, {}
    for name, p in lstm:named_parameters() do
      names[#names + 1], shapes[name] = name, table.concat(p.shape, "x")
      expect(p:abs():max():item() <= 0.25):to_be(true)
      expect(p:std():item()):to_be_near(0.25 / math.sqrt(3), 0.05)
    end
    expect(table.concat(names, " ", 1, 6)):to_be("weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 weight_hr_l0 \z
      weight_ih_l0_reverse")
    expect(#names):to_be(20)
    expect(shapes.weight_ih_l0):to_be("64x3")
    expect(shapes.weight_ih_l1):to_be("64x8")
    expect(shapes.weight_hh_l1_reverse):to_be("64x4")
    expect(shapes.weight_hr_l0):to_be("4x16")
  end)
  it("go on from a state as if there had been one sequence", function()
    for _, kind in ipairs { "RNN", "LSTM", "GRU" } do
      local net, x = nn[kind](3, 4, { num_layers = 2 }), gb.randn(6, 2, 3)
      local whole = net(x)
      local first, state = net(x:narrow(1, 1, 4))
      expect(gb.cat({ first, (net(x:narrow(1, 5, 2), state)) }, 1)):to_be_close(whole, 1e-6)
    end
  end)
  it("do for each sequence what they do for it alone", function()
    for _, kind in ipairs { "RNN", "LSTM", "GRU" } do
      local net, x, lengths = nn[kind](3, 4, { bidirectional = true, num_layers = 2 }), gb.randn(5, 3, 3), { 5, 0, 2 }
      local y, state = net(x, nil, { lengths = gb.tensor(lengths) })
      local h = gb.is_tensor(state) and state or state[1]
      for i, length in ipairs(lengths) do
        if length > 0 then
          local alone, last = net(x:select(2, i):narrow(1, 1, length))
          expect(y:select(2, i):narrow(1, 1, length)):to_be_close(alone, 1e-6)
          expect(h:select(2, i)):to_be_close(gb.is_tensor(last) and last or last[1], 1e-6)
        end
        if length < 5 then expect(y:select(2, i):narrow(1, length + 1, 5 - length):abs():max():item()):to_be(0) end
      end
      expect(h:select(2, 2):abs():max():item()):to_be(0)
    end
  end)
  it("read nothing beyond the length, forward or backward", function()
    for _, kind in ipairs { "RNN", "LSTM", "GRU" } do
      local net, x = nn[kind](3, 4, { bidirectional = true }), gb.randn(5, 2, 3)
      local function run_on(input)
        net:zero_grad()
        input:requires_grad_()
        local y = net(input, nil, { lengths = { 3, 3 } })
        y:sum():backward()
        return { y:detach(), input.grad, net.weight_ih_l0.grad, net.weight_hh_l0_reverse.grad }
      end
      local spoilt = x:clone()
      spoilt:narrow(1, 4, 2):fill_(0 / 0)
      local made, spoilt_made = run_on(x), run_on(spoilt)
      for i = 1, #made do expect(spoilt_made[i]):to_equal_bits(made[i]) end
      expect(spoilt.grad:narrow(1, 4, 2):abs():max():item()):to_be(0)
    end
  end)
  it("run a layer's steps as their cells do, in any size", function()
    for _, kind in ipairs { "RNN", "LSTM", "GRU" } do
      for _, size in ipairs { 1, 31, 70 } do
        local layer, x = nn[kind](3, size, { dtype = "float64" }), gb.randn({ 4, 101, 3 }, { dtype = "float64" })
        local cell = nn[kind .. "Cell"](3, size, { dtype = "float64" })
        for name, p in cell:named_parameters() do p:detach():copy_(layer[name .. "_l0"]:detach()) end
        local outputs, h, c = {}
        for t = 1, 4 do
          h, c = cell(x:select(1, t), h and (c and { h, c } or h))
          outputs[t] = h
        end
        local wanted, y = gb.stack(outputs, 1), (layer(x))
        expect(y):to_be_close(wanted, 1e-14)
        local up = gb.randn_like(y)
        local weights, own = {}, {}
        for name, p in cell:named_parameters() do weights[#weights + 1], own[#own + 1] = p, layer[name .. "_l0"] end
        local slopes = gb.grad((wanted * up):sum(), weights)
        for i, slope in ipairs(gb.grad((y * up):sum(), own)) do
          expect(slope):to_be_close(slopes[i], 1e-12 * (1 + slopes[i]:abs():max():item()))
        end
      end
    end
  end)
  -- A plain relu network of small whole numbers, whose sums are exact in any order: so its bits are known.
  local function relu_network(weight, h, steps)
    local layer = nn.RNN(1, h.shape[2], { nonlinearity = "relu", bias = false, dtype = h.dtype })
    layer:load_state_dict { weight_ih_l0 = gb.zeros(h.shape[2], 1, { dtype = h.dtype }), weight_hh_l0 = weight }
    h = h:clone():requires_grad_()
    local y = layer(gb.zeros(steps, h.shape[1], 1, { dtype = h.dtype }), h:unsqueeze(1))
    return y, h, layer
  end
  it("multiply states and gradients of 16 bits exactly, and add in float32", function()
    for _, size in ipairs { 33, 70, 600 } do
      for _, batch in ipairs { 2, 40 } do
        for _, dtype in ipairs { "bfloat16", "float16" } do
          local keep = (gb.rand(size, size) * size):lt(5)
          local weight = (gb.randint(-2, 3, { size, size }):float() * keep:float()):to(dtype)
          local h = gb.randint(-2, 3, { batch, size }):to(dtype)
          local y, first = relu_network(weight, h, 3)
          local up = gb.randint(-2, 3, { 3, batch, size }):to(dtype)
          y:backward(up)
          local wide, state, slope = weight:float(), h, gb.zeros(batch, size)
          for t = 1, 3 do
            state = F.relu(state:float():matmul(wide:t())):to(dtype)
            expect(gb.equal(y[t], state)):to_be(true)
          end
          for t = 3, 1, -1 do
            local sums = ((slope + up[t]:float()) * y[t]:gt(0):float()):to(dtype)
            slope = sums:float():matmul(wide)
          end
          expect(gb.equal(first.grad, slope:to(dtype))):to_be(true)
        end
      end
    end
  end)
  it("keep products of bfloat16 that are smaller than what its units know", function()
    local size = 64
    for _, tiny in ipairs { 1, 40 } do -- in either part of 32 columns
      local weight = gb.eye(size)
      weight[tiny][tiny] = 2.0 ^ -100
      local y = relu_network(weight:to("bfloat16"), gb.full({ 2, size }, 2.0 ^ -30):to("bfloat16"), 1):float()
      for i = 1, size do expect(y[1][2][i]:item()):to_be(2.0 ^ (i == tiny and -130 or -30)) end
    end
  end)
  it("have derivatives of their derivatives", function()
    for _, kind in ipairs { "RNN", "LSTM", "GRU" } do
      local net = nn[kind](2, 3, { dtype = "float64", bidirectional = true })
      local x, way = gb.randn({ 4, 2, 2 }, { dtype = "float64" }), gb.randn({ 4, 2, 2 }, { dtype = "float64" })
      local leaves = { net.weight_hh_l0, net.weight_ih_l0_reverse, net.bias_hh_l0 }
      local function slopes(at, again)
        at = at:detach():requires_grad_()
        local y = net(at, nil, { lengths = { 4, 2 } })
        local inputs = { at, table.unpack(leaves) }
        local list = gb.grad((y ^ 3):sum(), inputs, { create_graph = again })
        return list, at
      end
      -- the derivative along `way` of each gradient: by differences, and of their sums by gradients
      local list, at = slopes(x, true)
      local fused = (slopes(x))
      local ahead, behind = (slopes(x + 1e-5 * way)), (slopes(x - 1e-5 * way))
      for i, slope in ipairs(list) do
        expect(slope):to_be_close(fused[i], 1e-12)
        local exact = (gb.grad(slope:sum(), { at }, { retain_graph = true })[1] * way):sum():item()
        expect(((ahead[i] - behind[i]):sum() / 2e-5):item()):to_be_near(exact, 1e-6 * (1 + math.abs(exact)))
      end
    end
  end)
  it("have the gradients of the last state alone, once and with a graph of their own", function()
    for _, kind in ipairs { "LSTM", "GRU", "RNN" } do
      local module = nn[kind](3, 4, { num_layers = 2, dtype = "float64" })
      local x = gb.randn({ 5, 2, 3 }, { dtype = "float64" }):requires_grad_()
      local function slopes(of_y, o)
        local y, last = module(x)
        local h = of_y and y:select(1, 5) or (kind == "LSTM" and last[1] or last):select(1, 2) -- the same numbers
        return gb.grad((h ^ 2):sum(), { x, module.weight_hh_l0 }, o)
      end
      local want = slopes(true)
      for _, found in ipairs { slopes(false), slopes(false, { create_graph = true }) } do
        for i, slope in ipairs(found) do expect(slope):to_be_close(want[i], 1e-14) end
      end
    end
  end)
  it("begin with one tensor for both states, whose gradient is that of both, twice too", function()
    local net, state = nn.LSTM(2, 3, { dtype = "float64" }), gb.randn({ 1, 2, 3 }, { dtype = "float64" })
    local x = gb.randn({ 4, 2, 2 }, { dtype = "float64" })
    local function slope(h, c, leaves, again)
      return gb.grad((net(x, { h, c })):sum(), leaves, { create_graph = again })
    end
    local one, h, c = state:clone():requires_grad_(), state:clone():requires_grad_(), state:clone():requires_grad_()
    local apart = slope(h, c, { h, c })
    for _, again in ipairs { false, true } do
      expect(slope(one, one, { one }, again)[1]):to_be_close(apart[1] + apart[2], 1e-14)
    end
  end)
  it("give 16 bits under autocast, with float32 gradients of their weights", function()
    for _, kind in ipairs { "RNN", "LSTM", "GRU" } do
      local net, x = nn[kind](3, 4), gb.randn(5, 2, 3)
      local y, state = amp.autocast("bfloat16", function() return net(x) end)
      local h = gb.is_tensor(state) and state or state[1]
      expect(y.dtype .. h.dtype):to_be("bfloat16bfloat16")
      y:sum():backward()
      for _, p in net:named_parameters() do expect(p.grad.dtype):to_be("float32") end
    end
  end)
  it("drop between layers in training only", function()
    local net, x = nn.GRU(3, 8, { num_layers = 2, dropout = 0.5 }), gb.randn(4, 2, 3)
    expect((net(x) - net(x)):abs():max():item() > 0):to_be(true)
    net:eval()
    expect((net(x))):to_equal_bits((net(x)))
    expect(function() nn.GRU(3, 8, { dropout = 1.5 }) end):to_fail("dropout lies between 0 and 1, got 1.5")
  end)
  it("have the same bits for any number of threads, who share the units out", function()
    local before = gb.get_num_threads()
    -- widths of which a share could be one unit; and a weight so small that a unit for bfloat16 would lose it, in one
    -- share alone
    local function pass(kind, hidden, dtype, threads)
      gb.set_num_threads(threads)
      gb.manual_seed(11)
      local net, x = nn[kind](4, hidden), gb.randn(3, 96, 4):to(dtype):requires_grad_()
      for name, w in net:named_parameters() do
        if name:find "weight_hh" then w:detach()[{ 1, 1 }] = 1e-37 end
      end
      net:to(dtype)
      local y = net(x)
      y:float():pow(2):sum():backward()
      local results = { y, x.grad }
      for _, w in ipairs(net:parameters()) do results[#results + 1] = w.grad end
      return results
    end
    for _, case in ipairs {
      { "LSTM", 65, "float32" }, { "LSTM", 65, "float64" }, { "RNN", 129, "float32" }, { "GRU", 97, "float32" },
      { "RNN", 256, "bfloat16" }, { "LSTM", 128, "bfloat16" },
    } do
      local kind, hidden, dtype = table.unpack(case)
      local alone = pass(kind, hidden, dtype, 1)
      for _, threads in ipairs { 2, 3, 5 } do
        local shared = pass(kind, hidden, dtype, threads)
        for i, want in ipairs(alone) do expect(shared[i]):to_equal_bits(want) end
      end
    end
    gb.set_num_threads(before)
  end)
  it("say what does not fit", function()
    local net, x = nn.LSTM(3, 4), gb.randn(5, 2, 3)
    expect(function() net(gb.randn(5, 2, 4)) end):to_fail("LSTM expects 3 features, the last dimension of x has 4")
    expect(function() net(gb.randn(3)) end):to_fail("got 1 dimensions")
    expect(function() net(gb.randn(0, 2, 3)) end):to_fail("no time steps")
    expect(function() net(x, gb.zeros(1, 2, 4)) end):to_fail("a list of two tensors, { h, c }")
    expect(function() net(x, { gb.zeros(1, 2, 4), gb.zeros(1, 3, 4) }) end):to_fail("state[2] has shape [1, 3, 4], \z
      expected [1, 2, 4]")
    expect(function() nn.GRU(3, 4)(x, { x }) end):to_fail("the state is a tensor")
    expect(function() net(x, nil, { lengths = { 1 } }) end):to_fail("1 lengths for a batch of 2 sequences")
    expect(function() net(x, nil, { lengths = { 1, 6 } }) end):to_fail("lengths[2] is 6")
    expect(function() net(x, nil, { lengths = { 1, -1 } }) end):to_fail("lengths[2] is -1")
    expect(function() net(x, nil, { lengths = { 1, 1.5 } }) end):to_fail("lengths[2] is 1.5")
    expect(function() net(x, nil, { length = { 1, 1 } }) end):to_fail("did you mean 'lengths'?")
    expect(function() nn.LSTM(3, 4, { proj_size = 4 }) end):to_fail("proj_size is less than hidden_size")
    expect(function() nn.RNN(3, 4, { nonlinearity = "gelu" }) end):to_fail("nonlinearity")
    expect(function() nn.LSTM(0, 4) end):to_fail("'input_size' must be a whole number from 1")
    expect(function() nn.GRUCell(3, 4)(x) end):to_fail("GRUCell expects x [batch, 3] or [3], got [5, 2, 3]")
    expect(function() nn.GRUCell(3, 4)(x[1], gb.zeros(2, 5)) end):to_fail("the state has shape [2, 5], expected [2, 4]")
  end)
end)

gb.test.finish()
