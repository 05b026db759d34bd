-- test_recurrent.lua - recurrent layers by the device's library against the CPU's, forward and backward, and where
-- layers go without it. Run with the stand-in for cuDNN (GIBBOUS_CUDNN_ON_CPU) and without.
--
-- Both sum in another order. Under autocast the library's cell states have 16 bits between two steps, ours 32, and its
-- gradients of weights 16.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, F, amp = gb.nn, gb.nn.functional, gb.amp

local by_library = os.getenv("GIBBOUS_CUDNN_ON_CPU") ~= nil
-- Of each tensor's norm; 16 bits: sixteen roundings, each of a unit (2^-11 and 2^-8), of values that other rounded
-- ones were made of; a ReLU near 0 may be open here and shut there. How far either is from exact numbers is asked by
-- tests/lua/test_recurrent.lua.
local tolerance = { float64 = 1e-13, float32 = 4e-6, float16 = 2 ^ -7, bfloat16 = 2 ^ -4 }

-- Names of the ops that fn runs on the device, and how often.
local function ops_of(fn)
  local counts = {}
  for _, row in ipairs(gb.profile(fn, { print = false }).ops) do counts[row.op] = row.calls end
  return counts
end

-- The same layers on both devices.
local function pair(kind, inputs, size, options)
  local here = nn[kind](inputs, size, options)
  local there = nn[kind](inputs, size, options)
  there:load_state_dict(here:state_dict())
  return here, there:to("cuda")
end

local function parts_of(state) return gb.is_tensor(state) and { state } or state end

-- What a call gives, and gradients of everything: a list of tensors on the CPU, in float64.
local function results_of(net, device, x, state, lengths, scope)
  x = x:detach():clone():to(device):requires_grad_()
  local first = {}
  for i, part in ipairs(state or {}) do first[i] = part:detach():clone():to(device):requires_grad_() end
  local function forward()
    return net(x, state and (first[2] and first or first[1]), { lengths = lengths })
  end
  gb.manual_seed(7) -- the same numbers for dropout
  local y, last
  if scope then y, last = amp.autocast(scope, forward) else y, last = forward() end
  local list, loss = { y }, (y:float() ^ 2):sum()
  if y.dtype == "float64" then loss = (y ^ 2):sum() end
  for _, part in ipairs(parts_of(last)) do
    list[#list + 1] = part
    loss = loss + (part:to(loss.dtype) ^ 3):sum()
  end
  net:zero_grad()
  loss:backward()
  list[#list + 1] = x.grad
  for _, part in ipairs(first) do list[#list + 1] = part.grad end
  for _, p in net:named_parameters() do list[#list + 1] = p.grad end
  for i, t in ipairs(list) do list[i] = t:detach():to("cpu"):to("float64") end
  return list
end

local function expect_alike(here, there, most)
  expect(#there):to_be(#here)
  for i, a in ipairs(here) do
    local distance = (there[i] - a):norm():item() / math.max(a:norm():item(), 1e-3)
    if not (distance <= most) then error(("tensor %d is off by %g, at most %g"):format(i, distance, most)) end
  end
end

local kinds = { { "RNN" }, { "RNN", { nonlinearity = "relu" } }, { "LSTM" }, { "LSTM", { proj_size = 3 } }, { "GRU" } }
local shapes = { {}, { bias = false }, { num_layers = 2, bidirectional = true }, { num_layers = 3, dropout = 0.4 },
  { bidirectional = true, batch_first = true } }

-- The options of both lists in one.
local function options_of(...)
  local all = {}
  for _, o in ipairs { ... } do
    for name, value in pairs(o) do all[name] = value end
  end
  return all
end

for _, kind in ipairs(kinds) do
  for s, shape in ipairs(shapes) do
    local o = options_of(shape, kind[2] or {})
    describe(("%s%s, options %d"):format(kind[1], o.proj_size and " with a projection" or o.nonlinearity or "", s),
      function()
        local batch, time = 4, 5
        local function operands(dtype)
          local directions = (o.num_layers or 1) * (o.bidirectional and 2 or 1)
          local x = gb.randn(o.batch_first and { batch, time, 6 } or { time, batch, 6 }):to(dtype)
          local state = { gb.randn(directions, batch, o.proj_size or 8):to(dtype) }
          if kind[1] == "LSTM" then state[2] = gb.randn(directions, batch, 8):to(dtype) end
          return x, state
        end
        for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16" } do
          it("is the CPU's in " .. dtype, function()
            gb.manual_seed(3)
            local narrow = dtype:find("16") and dtype or nil
            local own = narrow and "float32" or dtype
            local here, there = pair(kind[1], 6, 8, options_of(o, { dtype = own }))
            local x, state = operands(own)
            for _, given in ipairs { false, state } do
              for _, lengths in ipairs { false, { 5, 0, 3, 1 } } do
                expect_alike(results_of(here, "cpu", x, given or nil, lengths or nil, narrow),
                  results_of(there, "cuda", x, given or nil, lengths or nil, narrow), tolerance[dtype])
              end
            end
            local counts = ops_of(function() there(x:to("cuda")) end)
            if not narrow then expect((counts.rnn or 0) > 0):to_be(by_library) end
          end)
        end
      end)
  end
end

describe("second derivatives", function()
  for _, case in ipairs { { "LSTM", { proj_size = 3, num_layers = 2, bidirectional = true } },
    { "LSTM", { bias = false } }, { "GRU", { num_layers = 2, bidirectional = true } }, { "RNN" } } do
    local projected = case[2] and case[2].proj_size
    it(("of %s%s are the CPU's"):format(case[1], projected and " with a projection" or ""), function()
      gb.manual_seed(4)
      local here, there = pair(case[1], 4, 5, options_of(case[2] or {}, { dtype = "float64" }))
      local x = gb.randn({ 5, 3, 4 }, { dtype = "float64" })
      local function slopes(net, device)
        local leaves = { x:clone():to(device):requires_grad_() }
        for _, p in net:named_parameters() do leaves[#leaves + 1] = p end
        local y, last = net(leaves[1], nil, { lengths = { 5, 2, 0 } })
        local loss = (y ^ 3):sum() + (parts_of(last)[2] or last):pow(2):sum()
        local list, sum = gb.grad(loss, leaves, { create_graph = true }), 0
        for _, slope in ipairs(list) do sum = sum + (slope ^ 2):sum() end
        for _, slope in ipairs(gb.grad(sum, leaves)) do list[#list + 1] = slope end
        for i, t in ipairs(list) do list[i] = t:detach():to("cpu") end
        return list
      end
      expect_alike(slopes(here, "cpu"), slopes(there, "cuda"), 1e-13)
    end)
  end
end)

if by_library then
  -- What a program of its own says on standard error, with these variables set.
  local function said(environment, code)
    local pipe <close> = io.popen(('%s "%s" -e "%s" 2>&1'):format(environment, gb.test.program(), code))
    return pipe:read("a")
  end

  describe("the library", function()
    local net = nn.LSTM(6, 8, { num_layers = 2, bidirectional = true }):to("cuda")
    local x = gb.randn({ 5, 4, 6 }, { device = "cuda" })
    it("runs all layers as one call, and packs weights once for each version of them", function()
      expect(ops_of(function() net(x) end).rnn_pack):to_be(1)
      local counts = ops_of(function() net(x) net(x) end)
      expect(counts.rnn):to_be(2)
      expect(counts.rnn_pack):to_be(nil)
      expect(counts.recurrent):to_be(nil)
      local opt = gb.optim.SGD(net:parameters(), { lr = 0.1 })
      net(x):sum():backward()
      opt:step()
      local before = (net(x))
      expect(ops_of(function() net(x) end).rnn_pack):to_be(nil)
      gb.no_grad(function() net.weight_hh_l1:mul_(0.5) end)
      local after
      expect(ops_of(function() after = (net(x)) end).rnn_pack):to_be(1)
      expect((after - before):abs():max():item() > 0):to_be(true)
    end)
    it("packs the weights of a module anew where they are others, or come back from another device", function()
      local model = nn.LSTM(6, 8):to("cuda")
      local y = (model(x))
      model.weight_ih_l0 = nn.Parameter(model.weight_ih_l0:detach():clone())
      expect(ops_of(function() expect((model(x))):to_equal_bits(y) end).rnn_pack):to_be(1)
      model:to("cpu")
      gb.no_grad(function() model.weight_hh_l0:mul_(0.5) end)
      local here = (model(x:to("cpu")))
      model:to("cuda")
      expect((model(x))):to_be_close(here, 1e-6)
      expect((model(x) - y):abs():max():item() > 1e-3):to_be(true)
    end)
    it("packs anew what the replay of a graph may have written", function()
      local model = nn.LSTM(6, 8):to("cuda")
      local halve = gb.cuda.graph(function(z)
        gb.no_grad(function() model.weight_hh_l0:mul_(0.5) end)
        return z * 1
      end, { x })
      for _ = 1, 3 do
        halve(x)
        local fresh = nn.LSTM(6, 8):to("cuda")
        gb.no_grad(function()
          for name, p in pairs(fresh:state_dict()) do p:copy_(model:state_dict()[name]) end
        end)
        expect((model(x))):to_equal_bits((fresh(x)))
      end
    end)
    it("says what changed between forward and backward where it cannot go back", function()
      expect(said("CUBLAS_WORKSPACE_CONFIG=", [[
        local gb = require 'gibbous'
        gb.set_deterministic(false)
        local y = gb.nn.LSTM(4, 4):to('cuda')(gb.ones({ 2, 2, 4 }, { device = 'cuda' }))
        gb.set_deterministic(true)
        print(pcall(y.backward, y:sum()))]]):find("call set_deterministic", 1, true) ~= nil):to_be(true)
    end)
    it("packs once for a training step, in the dtype of autocast", function()
      local model = nn.GRU(6, 8):to("cuda")
      local opt = gb.optim.AdamW(model:parameters(), { lr = 0.1 })
      local function step()
        opt:zero_grad()
        amp.autocast("bfloat16", function() return (model(x)) end):float():sum()
          :backward()
        opt:step()
      end
      for _ = 1, 3 do
        local counts = ops_of(step)
        expect(counts.rnn_pack):to_be(1)
        expect(counts.rnn_backward):to_be(1)
        expect(counts.rnn_unpack):to_be(4)
      end
    end)
    it("computes the gradients that are asked for", function()
      local model = nn.GRU(6, 8):to("cuda")
      for _, p in model:named_parameters() do p:requires_grad_(false) end
      local leaf = x:clone():requires_grad_()
      local counts = ops_of(function() model(leaf):sum():backward() end)
      expect(counts.rnn_unpack):to_be(nil)
      expect(leaf.grad):to_have_shape(leaf.shape)
      model.bias_hh_l0:requires_grad_()
      expect(ops_of(function() model(x):sum():backward() end).rnn_unpack):to_be(1)
      expect(ops_of(function() gb.no_grad(function() model(x) end) end).rnn_backward):to_be(nil)
    end)
    it("adds gradients up, passes backward twice, and says where the graph has gone", function()
      local model = nn.LSTM(6, 8):to("cuda")
      local loss = model(x):pow(2):sum()
      loss:backward { retain_graph = true }
      local once = model.weight_hh_l0.grad:clone()
      loss:backward()
      expect(model.weight_hh_l0.grad):to_be_close(2 * once, 1e-5)
      expect(function() loss:backward() end):to_fail("retain_graph")
      loss = model(x):pow(2):sum()
      gb.no_grad(function() model.weight_hh_l0:mul_(2) end)
      expect(function() loss:backward() end):to_fail("was changed in place")
    end)
    it("gives the bits of the call again, and in a captured graph", function()
      local function train(captured)
        gb.manual_seed(9)
        local model = nn.LSTM(6, 8, { num_layers = 2, dropout = 0.2 }):to("cuda")
        local opt = gb.optim.SGD(model:parameters(), { lr = 0.05 })
        local function step(input)
          opt:zero_grad()
          local loss = model(input):pow(2):mean()
          loss:backward()
          opt:step()
          return loss
        end
        local run = captured and gb.cuda.graph(step, { x }) or step
        local losses = {}
        for i = 1, 4 do losses[i] = run(x):item() end
        model:eval()
        losses[5] = model(x):sum():item()
        return losses, model.weight_hh_l1:detach():clone()
      end
      local losses, weight = train(false)
      for _, captured in ipairs { false, true } do
        local again, same = train(captured)
        expect(table.concat(again, " ")):to_be(table.concat(losses, " "))
        expect(same):to_equal_bits(weight)
      end
    end)
    it("rounds to TF32 where it may", function()
      local model = nn.RNN(6, 8):to("cuda")
      local exact = (model(x))
      gb.set_float32_matmul_precision("high")
      local rounded = (model(x))
      gb.set_float32_matmul_precision("highest")
      expect((model(x))):to_equal_bits(exact)
      expect((rounded - exact):abs():max():item() > 0):to_be(true)
      expect(rounded):to_be_close(exact, 1e-2)
    end)
    it("goes back in the precision of forward, whatever is set by then", function()
      local model = nn.LSTM(6, 8):to("cuda")
      local function slope_of(forward, backward)
        gb.set_float32_matmul_precision(forward)
        local loss = (model(x)):pow(2):sum()
        gb.set_float32_matmul_precision(backward)
        local slope = gb.grad(loss, { model.weight_hh_l0 })[1]
        gb.cuda.synchronize()
        gb.set_float32_matmul_precision("highest")
        return slope
      end
      local exact, rounded = slope_of("highest", "highest"), slope_of("high", "high")
      expect((rounded - exact):abs():max():item() > 0):to_be(true)
      expect(slope_of("high", "highest")):to_equal_bits(rounded)
      expect(slope_of("highest", "high")):to_equal_bits(exact)
    end)
    it("takes weights that are computed, and passes their gradients on", function()
      local here, there = pair("GRU", 6, 8, { dtype = "float64" })
      nn.utils.weight_norm(here, { name = "weight_hh_l0" })
      nn.utils.weight_norm(there, { name = "weight_hh_l0" })
      local input = gb.randn({ 5, 4, 6 }, { dtype = "float64" })
      expect_alike(results_of(here, "cpu", input), results_of(there, "cuda", input), 1e-13)
    end)
    it("lets memory of packed weights go with the module", function()
      local function used()
        collectgarbage() collectgarbage()
        gb.cuda.synchronize()
        return gb.cuda.memory_allocated()
      end
      local before = used()
      do
        local model = nn.LSTM(64, 64):to("cuda")
        model(gb.randn({ 2, 2, 64 }, { device = "cuda" }))
      end
      expect(used()):to_be(before)
      local model = nn.LSTM(64, 64):to("cuda")
      local one = used()
      gb.no_grad(function() model(gb.randn({ 2, 2, 64 }, { device = "cuda" })) end)
      model:to("cpu")
      model(gb.randn({ 2, 2, 64 }))
      expect(used() < one):to_be(true)
    end)
  end)

  local script = [[
    local gb = require 'gibbous'
    SETTING
    local net = gb.nn.LSTM(4, 4):to('cuda', 'DTYPE')
    local y = net(gb.ones({ 2, 2, 4 }, { device = 'cuda', dtype = 'DTYPE' }))
    net(gb.ones({ 2, 2, 4 }, { device = 'cuda', dtype = 'DTYPE' }))
    y:float():sum():backward()
    print(net.weight_hh_l0.grad.dtype)]]
  local function run(environment, dtype, setting)
    return said(environment, (script:gsub("%u%u%u+", { DTYPE = dtype, SETTING = setting or "" })))
  end
  local told = "^gibbous: recurrent layers run step by step: %s[^\n]*told once[^\n]*\n%s\n$"
  describe("without the library layers run step by step, which is told once", function()
    it("where it is absent", function()
      expect(run("env -u GIBBOUS_CUDNN_ON_CPU", "float32")
        :match(told:format("the emulated device has no cuDNN", "float32")) ~= nil):to_be(true)
    end)
    it("where it refuses", function()
      expect(run("GIBBOUS_CUDNN_WITHOUT=bfloat16", "bfloat16")
        :match(told:format("cuDNN does not run them: not supported this dtype", "bfloat16")) ~= nil):to_be(true)
      expect(run("GIBBOUS_CUDNN_WITHOUT=bfloat16", "float16")):to_be("float16\n")
    end)
    it("where its bits may change and the same ones are wanted", function()
      for _, config in ipairs { "", ":16:8:4096:2" } do
        expect(run("CUBLAS_WORKSPACE_CONFIG=" .. config, "float32")
          :match(told:format("cuDNN's bits may change from run to run", "float32")) ~= nil):to_be(true)
      end
      expect(run("CUBLAS_WORKSPACE_CONFIG=", "float32", "gb.set_deterministic(false)")):to_be("float32\n")
    end)
  end)
end

describe("the audit", function()
  it("counts the products of recurrent layers", function()
    local time, batch, input, size = 4, 8, 24, 16
    for _, options in ipairs { {}, { num_layers = 3, proj_size = 8 }, { num_layers = 2, bidirectional = true } } do
      local layers, ways = options.num_layers or 1, options.bidirectional and 2 or 1
      local state, sums = options.proj_size or size, 4 * size
      local weights = sums * input + (layers - 1) * sums * ways * state + layers * sums * state
      if options.proj_size then weights = weights + layers * state * size end
      local _, net = pair("LSTM", input, size, options)
      local x = gb.randn({ time, batch, input }, { device = "cuda" }):requires_grad_()
      local report = amp.audit(net, function(m)
        amp.autocast("bfloat16", m, x):float():sum():backward()
      end, { print = false })
      -- forward, the gradients of what goes in, and of the weights; step by step the first h of projected layers is 0
      local spared = not by_library and options.proj_size and 2 * batch * layers * sums * state or 0
      expect(report.operations):to_be(3 * 2 * time * batch * ways * weights - spared)
    end
  end)
end)

gb.test.finish()
