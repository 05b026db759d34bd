-- nn/recurrent.lua - RNN, LSTM, GRU and their cells, with PyTorch's parameter names, shapes and first values.
--
-- The input's part of the gates of all time steps is one product; the op `recurrent` then runs a layer's steps in one
-- direction, each of which adds the product with the state before it. Sequences of unlike lengths run side by side:
-- where one has ended, its state stays and its output is zero, in either direction. Under autocast y and the states
-- have 16 bits; between two steps of a layer the cell state is float32. Cells, and layers with projections, run step by
-- step, by ops of their own.
--
-- Where a device has a library for layers (cuDNN), all of them are one call of the op `rnn`, projections included. It
-- takes the weights in one vector, which is kept with the module until one of them changes. Layers with dropout between
-- them go one by one, so that the random numbers are those of the other ways. What the library keeps between two steps
-- is its own choice.

local gb, native = ...
local fail, drop = native.fail, native.drop
local fused, library, pack = native.inner.recurrent, native.inner.rnn, native.inner.rnn_pack
local versions_of, has_library = native.versions_of, native.has_library
local layer, method, parameter = native.layer, native.layer_method, native.empty_parameter
local nn = gb.nn
local F, init = nn.functional, nn.init
local format, sqrt, concat, type, ipairs, rawequal = string.format, math.sqrt, table.concat, type, ipairs, rawequal

-- {==== one step ====

-- A kind of cell: how many gates it has, whether it carries a cell state, what the op calls it, and step(self, gates,
-- h, c, w) -> h, c: the state after one step, from the input's part of the gates and the state before.
local kinds = {}

-- The i-th gate of [batch, gates * size].
local function gate(gates, i, size) return gates:narrow(-1, (i - 1) * size + 1, size) end

-- fn(x), of a handle that nothing else needs.
local function of(fn, x)
  local y = fn(x)
  drop(x)
  return y
end

-- x + y, of two handles that nothing else needs.
local function added(x, y)
  local z = x + y
  drop(x) drop(y)
  return z
end

local nonlinearities = { tanh = gb.tanh, relu = F.relu }

kinds.RNN = { gates = 1, step = function(self, gates, h, _, w)
  return of(nonlinearities[self.nonlinearity], added(F.linear(h, w.hh, w.bias_hh), gates))
end }

kinds.LSTM = { gates = 4, cell = true, op = "lstm", step = function(self, gates, h, c, w)
  local sums, size = added(F.linear(h, w.hh, w.bias_hh), gates), self.hidden_size
  local input, forget = of(F.sigmoid, gate(sums, 1, size)), of(F.sigmoid, gate(sums, 2, size))
  local new, output = of(F.tanh, gate(sums, 3, size)), of(F.sigmoid, gate(sums, 4, size))
  drop(sums)
  local kept, fresh = forget * c, input * new
  drop(forget) drop(input) drop(new)
  local cell = added(kept, fresh)
  local bent = F.tanh(cell)
  local hidden = output * bent
  drop(output) drop(bent)
  if w.hr then hidden = of(function(x) return F.linear(x, w.hr) end, hidden) end
  return hidden, cell
end }

kinds.GRU = { gates = 3, op = "gru", step = function(self, gates, h, _, w)
  local sums, size = F.linear(h, w.hh, w.bias_hh), self.hidden_size
  local reset = of(F.sigmoid, added(gate(sums, 1, size), gate(gates, 1, size)))
  local update = of(F.sigmoid, added(gate(sums, 2, size), gate(gates, 2, size)))
  local past = gate(sums, 3, size)
  local kept = past * reset
  drop(past) drop(reset) drop(sums)
  local new = of(F.tanh, added(kept, gate(gates, 3, size)))
  drop(gates)
  local apart = h - new
  local share = apart * update
  drop(apart) drop(update)
  return added(share, new)
end }

-- ====}

-- {==== what layers and cells share ====

-- The parameters of one step: weight_ih .. and so on with this suffix, drawn uniformly from +-1 / sqrt(hidden).
local function make_weights(self, kind, suffix, inputs, o)
  local hidden, gates = self.hidden_size, kind.gates * self.hidden_size
  local bound = 1 / sqrt(hidden)
  local function drawn(name, ...) self[name .. suffix] = init.uniform_(parameter(o, ...), -bound, bound) end
  drawn("weight_ih", gates, inputs)
  drawn("weight_hh", gates, self.state_size or hidden)
  if o.bias then
    drawn("bias_ih", gates)
    drawn("bias_hh", gates)
  end
  if o.proj_size and o.proj_size > 0 then drawn("weight_hr", o.proj_size, hidden) end
end

-- The same, as a step reads them.
local function weights_of(self, suffix)
  return {
    ih = self["weight_ih" .. suffix], hh = self["weight_hh" .. suffix], bias_ih = self["bias_ih" .. suffix],
    bias_hh = self["bias_hh" .. suffix], hr = self["weight_hr" .. suffix],
  }
end

-- An error unless t has this shape.
local function expect_shape(t, who, what, ...)
  local wants = { ... }
  local same = #t.shape == #wants
  for i = 1, #wants do same = same and t.shape[i] == wants[i] end
  if not same then
    fail(format("%s: %s has shape [%s], expected [%s]", who, what, concat(t.shape, ", "), concat(wants, ", ")))
  end
end

-- The parts of a state that was handed over, { h, c } where there is a cell state and else h.
local function parts_of(state, kind, who)
  if not kind.cell then
    if not gb.is_tensor(state) then fail(format("%s: the state is a tensor, got a %s", who, type(state))) end
    return { state }
  end
  if gb.is_tensor(state) or #state ~= 2 or not (gb.is_tensor(state[1]) and gb.is_tensor(state[2])) then
    fail(format("%s: the state is a list of two tensors, { h, c }", who))
  end
  return { state[1], state[2] }
end

-- ====}

-- {==== layers ====

-- The lengths as an integer vector on the host.
local function lengths_of(lengths, time, batch, who)
  if gb.is_tensor(lengths) then
    if lengths.ndim ~= 1 then fail(format("%s: lengths is a vector, got %d dimensions", who, lengths.ndim)) end
    lengths = lengths:tolist()
  end
  if #lengths ~= batch then fail(format("%s: %d lengths for a batch of %d sequences", who, #lengths, batch)) end
  for i, length in ipairs(lengths) do
    if math.type(length) ~= "integer" or length < 0 or length > time then
      fail(format("%s: lengths[%d] is %s, a length is a whole number from 0 to %d, the time steps of x", who, i,
        native.shown(length), time))
    end
  end
  return gb.tensor(lengths, { dtype = "int64", device = "cpu" })
end

-- bool [time, batch, 1]: is there still an element of the sequence?
local function valid_steps(lengths, time)
  return gb.arange(time, { device = lengths.device }):unsqueeze(2):lt(lengths):unsqueeze(3)
end

-- The state after a step: the new one where the sequence goes on, else that from before. Nothing else needs the handles
-- of the two.
local function stay(is, new, old)
  local state = gb.where(is, new, old)
  drop(new) drop(old)
  return state
end

-- One layer in one direction by steps: y [time, batch, size], and the last h and c.
local function run_steps(self, kind, w, x, h, c, valid, backwards)
  local time = x:size(1)
  local gates, outputs = F.linear(x, w.ih, w.bias_ih), {}
  for i = 1, time do
    local t = backwards and time + 1 - i or i
    local new, cell = kind.step(self, gates:select(1, t), h, c, w)
    if valid then
      local is = valid:select(1, t)
      outputs[t] = gb.where(is, new, 0)
      h, c = stay(is, new, h), cell and stay(is, cell, c)
    else
      if c then drop(c) end
      outputs[t], h, c = new, new, cell
    end
  end
  drop(gates)
  local y = gb.stack(outputs, 1)
  for t = 1, time do
    if not rawequal(outputs[t], h) then drop(outputs[t]) end
  end
  return y, h, c
end

-- The same by the op. Where both biases meet the same sums they are added before.
local function run_fused(self, kind, w, x, h, c, lengths, backwards)
  local bias, inner = w.bias_ih, w.bias_hh
  if bias and kind ~= kinds.GRU then bias, inner = bias + inner, nil end
  local gates = F.linear(x, w.ih, bias)
  local y, last_h, last_c = fused(gates, w.hh, inner, h, c, lengths,
    { cell = kind.op or self.nonlinearity, backwards = backwards })
  drop(gates)
  if bias ~= w.bias_ih then drop(bias) end
  return y, last_h, last_c
end

-- One layer in one direction over x [time, batch, inputs] from state h, c [batch, size]: y [time, batch, size], and the
-- last h and c.
local function run_direction(self, kind, w, x, h, c, lengths, valid, backwards)
  if w.hr then return run_steps(self, kind, w, x, h, c, valid, backwards) end
  return run_fused(self, kind, w, x, h, c, lengths, backwards)
end

-- The states that the layers begin with, of the shapes that the op takes; nil where none were handed over.
local function given_states(self, kind, state, batch, batched, who)
  if state == nil then return nil end
  local count = self.num_layers * (self.bidirectional and 2 or 1)
  local parts = parts_of(state, kind, who)
  for i, part in ipairs(parts) do
    local what = kind.cell and format("state[%d]", i) or "the state"
    local size = i == 1 and self.state_size or self.hidden_size
    if batched then expect_shape(part, who, what, count, batch, size)
    else
      expect_shape(part, who, what, count, size)
      parts[i] = part:unsqueeze(2)
    end
  end
  return parts[1], parts[2]
end

-- The same where nothing was handed over: zeros in x's dtype.
local function zero_states(self, kind, x)
  local count = self.num_layers * (self.bidirectional and 2 or 1)
  local function zeros(size) return gb.zeros({ count, x:size(2), size }, { dtype = x.dtype, device = x.device }) end
  return zeros(self.state_size), kind.cell and zeros(self.hidden_size) or nil
end

-- The states of layer i in each direction.
local function states_of(self, state, i)
  local directions = self.bidirectional and 2 or 1
  return state and state:narrow(1, (i - 1) * directions + 1, directions)
end

-- Weights of layers first .. last, in the order that the op takes them.
local function list_weights(self, first, last)
  local list = {}
  for i = first, last do
    for d = 1, self.bidirectional and 2 or 1 do
      local w = weights_of(self, format("_l%d%s", i - 1, d == 2 and "_reverse" or ""))
      for _, name in ipairs { "ih", "hh", "bias_ih", "bias_hh", "hr" } do list[#list + 1] = w[name] end
    end
  end
  return list
end

-- What was packed for a module: packs[module][first layer] = { versions, dtype, packed, weights }. The weights are held
-- so that no other tensor can pass for one of them.
local packs = setmetatable({}, { __mode = "k" })

-- The weights in one vector, packed again only where one has changed since or another dtype is asked for. Where nobody
-- knows whether one has (versions is nil), they are packed for this call alone: then false comes behind them.
local function packed_weights(self, first, weights, dtype, o)
  local versions, kept = versions_of(weights), packs[self]
  if not kept then
    kept = {}
    packs[self] = kept
  end
  local last = kept[first]
  local same = versions and last and last.versions == versions and last.dtype == dtype and #last.weights == #weights
  for i = 1, same and #weights or 0 do same = same and rawequal(last.weights[i], weights[i]) end
  if same then return last.packed, true end
  kept[first] = nil
  if last then drop(last.packed) end
  local packed = gb.no_grad(pack, weights, o)
  if versions then kept[first] = { versions = versions, dtype = dtype, packed = packed, weights = weights } end
  return packed, versions ~= nil
end

-- Layers first .. last in one call of the library: y, h and c; or nothing, where it does not run them.
local function run_library(self, kind, x, h, c, lengths, first, last)
  local weights = list_weights(self, first, last)
  local o = { cell = kind.op or self.nonlinearity, layers = last - first + 1, bidirectional = self.bidirectional,
    bias = self["bias_ih_l" .. first - 1] ~= nil }
  local dtype, tf32 = has_library(x, h, c, lengths ~= nil, weights, o.cell, o.layers, o.bidirectional, o.bias)
  if not dtype then return nil end
  local packed, kept = packed_weights(self, first, weights, dtype, o)
  o.tf32 = tf32 -- which backward has, too, whatever is set by then
  local y, last_h, last_c = library(x, h, c, lengths, packed, weights, o)
  if not kept then drop(packed) end
  return y, last_h, last_c
end

-- All layers by the library, or nothing where it does not run them.
local function run_by_library(self, kind, x, h0, c0, lengths)
  local drops = self.num_layers > 1 and self.dropout > 0 and self.training
  if not drops then return run_library(self, kind, x, h0, c0, lengths, 1, self.num_layers) end
  local last_h, last_c = {}, {}
  for i = 1, self.num_layers do
    local y, h, c = run_library(self, kind, x, states_of(self, h0, i), states_of(self, c0, i), lengths, i, i)
    if not y then return nil end
    x, last_h[i], last_c[i] = y, h, c
    if i < self.num_layers then x = of(function(z) return F.dropout(z, self.dropout, true) end, x) end
  end
  return x, gb.cat(last_h, 1), kind.cell and gb.cat(last_c, 1)
end

-- All layers over x [time, batch, inputs]: y, and the last states of each layer and direction.
local function run_layers(self, kind, x, h0, c0, lengths, valid)
  if not h0 then h0, c0 = zero_states(self, kind, x) end
  local last_h, last_c = {}, {}
  local directions = self.bidirectional and 2 or 1
  for i = 1, self.num_layers do
    local sides = {}
    for d = 1, directions do
      local n = #last_h + 1
      local w = weights_of(self, format("_l%d%s", i - 1, d == 2 and "_reverse" or ""))
      sides[d], last_h[n], last_c[n] = run_direction(self, kind, w, x, h0:select(1, n), c0 and c0:select(1, n), lengths,
        valid, d == 2)
    end
    x = directions == 2 and gb.cat(sides, -1) or sides[1]
    if i < self.num_layers and self.dropout > 0 and self.training then x = F.dropout(x, self.dropout, true) end
  end
  return x, gb.stack(last_h, 1), kind.cell and gb.stack(last_c, 1)
end

-- What a call of a layer does.
local function forward(self, kind, who, x, state, o)
  if x.ndim ~= 2 and x.ndim ~= 3 then
    fail(format("%s expects x [time, batch, %d] or [time, %d], got %d dimensions", who, self.input_size,
      self.input_size, x.ndim))
  end
  if x:size(-1) ~= self.input_size then
    fail(format("%s expects %d features, the last dimension of x has %d", who, self.input_size, x:size(-1)))
  end
  local batched = x.ndim == 3
  if not batched then x = x:unsqueeze(2)
  elseif self.batch_first then x = x:transpose(1, 2) end
  local time, batch = x:size(1), x:size(2)
  if time == 0 then fail(format("%s: x has no time steps", who)) end
  local host = o.lengths and lengths_of(o.lengths, time, batch, who)
  local lengths = host and host:to(x.device)
  local valid = lengths and valid_steps(lengths, time)
  -- what lies beyond may be NaN, which 0 times it would bring into gradients
  if valid then x = gb.where(valid, x, 0) end
  local h0, c0 = given_states(self, kind, state, batch, batched, who)
  local y, h, c
  if x.device ~= "cpu" then y, h, c = run_by_library(self, kind, x, h0, c0, host) else packs[self] = nil end
  if not y then y, h, c = run_layers(self, kind, x, h0, c0, lengths, valid) end
  if not batched then y, h, c = y:squeeze(2), h:squeeze(2), c and c:squeeze(2)
  elseif self.batch_first then y = y:transpose(1, 2) end
  return y, kind.cell and { h, c } or h
end

-- A layer of a kind; `more` are its options beside those of all.
local function recurrent(name, more, text)
  local kind = kinds[name]
  local class = layer(format("gb.nn.%s(input_size: size, hidden_size: size; num_layers: size = 1, bias: bool = \z
    true, batch_first: bool = false, dropout: number = 0, bidirectional: bool = false%s, dtype?: dtype) -> module: \z
    %s Called as module(x, state, { lengths = }) with x [time, batch, input_size], or [batch, time, input_size] with \z
    batch_first; gives y and the last state. lengths: the steps of each sequence that count; y is zero beyond them. \z
    dropout: of the outputs of each layer but the last. Errors: dropout outside 0 .. 1. Example: local y, state = \z
    gb.nn.%s(4, 8)(gb.rand(5, 2, 4))", name, more, text, name), function(self, input_size, hidden_size, o)
    if not (o.dropout >= 0 and o.dropout <= 1) then
      fail(format("%s: dropout lies between 0 and 1, got %s", name, native.shown(o.dropout)))
    end
    local projected = o.proj_size and o.proj_size > 0
    if projected and o.proj_size >= hidden_size then
      fail(format("%s: proj_size is less than hidden_size, got %d and %d", name, o.proj_size, hidden_size))
    end
    self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, o.num_layers
    self.batch_first, self.dropout, self.bidirectional = o.batch_first, o.dropout, o.bidirectional
    self.nonlinearity = o.nonlinearity
    self.state_size = projected and o.proj_size or hidden_size
    for i = 1, o.num_layers do
      local inputs = i == 1 and input_size or self.state_size * (o.bidirectional and 2 or 1)
      make_weights(self, kind, "_l" .. i - 1, inputs, o)
      if o.bidirectional then make_weights(self, kind, format("_l%d_reverse", i - 1), inputs, o) end
    end
  end)
  method(class, format("%s:forward(x: tensor, state?: tensor|list; lengths?: tensor|list) -> tensor, any: y [time, \z
    batch, size], of both directions side by side, and the last state [layers * directions, batch, size]%s, which \z
    the next call may begin with; with lengths, that after the last step of each sequence. Errors: shapes that do \z
    not fit; a length beyond the time steps. Example: local y, state = gb.nn.%s(4, 8)(gb.rand(5, 2, 4), nil, { \z
    lengths = { 5, 3 } })", name, kind.cell and ", as a list { h, c }" or "", name),
    function(self, x, state, o) return forward(self, kind, name, x, state, o) end)
  function class:extra()
    return format("%d -> %d%s%s%s", self.input_size, self.hidden_size,
      self.num_layers > 1 and format(", %d layers", self.num_layers) or "",
      self.bidirectional and ", both directions" or "", self.batch_first and ", batch first" or "")
  end
end

recurrent("RNN", ", nonlinearity: \"tanh\"|\"relu\" = \"tanh\"", "Elman's recurrent layers: h = tanh(W_ih x + b_ih \z
  + W_hh h + b_hh).")
recurrent("LSTM", ", proj_size: count = 0", "Long short-term memory (Hochreiter, Schmidhuber 1997), gates in the \z
  order input, forget, cell, output; the state is { h, c }. proj_size: h is projected to that many features.")
recurrent("GRU", "", "Gated recurrent units (Cho et al. 2014), gates in the order reset, update, new.")

-- ====}

-- {==== cells ====

-- A cell of a kind: one step for a batch.
local function cell(name, more, result, text)
  local kind, who = kinds[name], name .. "Cell"
  local class = layer(format("gb.nn.%s(input_size: size, hidden_size: size; bias: bool = true%s, dtype?: dtype) -> \z
    module: One step of %s: module(x, state) with x [batch, input_size] gives %s. %s Example: local h = gb.nn.%s(4, \z
    8)(gb.rand(2, 4))", who, more, name, result, text, who),
    function(self, input_size, hidden_size, o)
      self.input_size, self.hidden_size, self.nonlinearity = input_size, hidden_size, o.nonlinearity
      make_weights(self, kind, "", input_size, o)
    end)
  method(class, format("%s:forward(x: tensor, state?: tensor|list) -> tensor%s: The state after one step, %s; it \z
    begins with zeros unless one is given. Errors: shapes that do not fit. Example: local h = gb.nn.%s(4, \z
    8):forward(gb.rand(2, 4))", who, kind.cell and ", tensor" or "", result, who),
    function(self, x, state)
    if x.ndim ~= 1 and x.ndim ~= 2 or x:size(-1) ~= self.input_size then
      fail(format("%s expects x [batch, %d] or [%d], got [%s]", who, self.input_size, self.input_size,
        concat(x.shape, ", ")))
    end
    local single = x.ndim == 1
    if single then x = x:unsqueeze(1) end
    local parts = state ~= nil and parts_of(state, kind, who) or {}
    for i = 1, kind.cell and 2 or 1 do
      if not parts[i] then parts[i] = gb.zeros({ x:size(1), self.hidden_size }, { dtype = x.dtype, device = x.device })
      else
        if single then parts[i] = parts[i]:unsqueeze(1) end
        expect_shape(parts[i], who, kind.cell and format("state[%d]", i) or "the state", x:size(1), self.hidden_size)
      end
    end
    local w = weights_of(self, "")
    local h, c = kind.step(self, F.linear(x, w.ih, w.bias_ih), parts[1], parts[2], w)
    if single then h, c = h:squeeze(1), c and c:squeeze(1) end
    if kind.cell then return h, c end
    return h
  end)
  function class:extra() return format("%d -> %d", self.input_size, self.hidden_size) end
end

cell("RNN", ", nonlinearity: \"tanh\"|\"relu\" = \"tanh\"", "h [batch, hidden_size]", "")
cell("LSTM", "", "h and c [batch, hidden_size]", "The state is { h, c }.")
cell("GRU", "", "h [batch, hidden_size]", "")

-- ====}
