-- test_gradient_sums.lua - gradients that go straight to where they are summed up: the bits are those of gradients that
-- are handed over and added. Under gb.anomaly, where each is looked at, they are handed over.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, F, optim = gb.nn, gb.nn.functional, gb.optim

-- The gradients of loss(tensors) by each of them, which are leaves of these values.
local function gradients(values, loss)
  local leaves = {}
  for i, value in ipairs(values) do leaves[i] = value:clone():requires_grad_(true) end
  loss(table.unpack(leaves)):backward()
  for i, leaf in ipairs(leaves) do leaves[i] = leaf.grad end
  return leaves
end

local function expect_same_bits(one, other)
  for i, gradient in ipairs(one) do expect(gradient):to_equal_bits(other[i]) end
end

local function expect_sums(values, loss)
  local apart
  gb.anomaly(function() apart = gradients(values, loss) end)
  expect_same_bits(gradients(values, loss), apart)
end

-- How often backward runs an op, by its name.
local function backward_ops(fn)
  local calls = setmetatable({}, { __index = function() return 0 end })
  for _, row in ipairs(gb.profile(fn, { print = false }).ops) do
    if row.phase == "backward" then calls[row.op] = row.calls end
  end
  return calls
end

describe("gradients of norms", function()
  it("need no additions of their own", function()
    local x, weight = gb.randn(4, 8):requires_grad_(true), gb.ones(8):requires_grad_(true)
    local stream = x * 2
    local skip = stream + F.gelu(F.rms_norm(stream, { 8 }))
    local y, sum = F.add_layer_norm(x * 3, skip, { 8 }, weight)
    local loss = (sum * 2 + y):sum()
    expect(backward_ops(function() loss:backward() end).add):to_be(1) -- of the leaf's two products
  end)
  for _, dtype in ipairs { "float32", "float64", "bfloat16" } do
    gb.manual_seed(5)
    local x, weight, bias = gb.randn(6, 37):to(dtype), gb.randn(37):to(dtype), gb.randn(37):to(dtype)
    local up = gb.randn(6, 37):to(dtype)
    it("join what has arrived for x, " .. dtype, function()
      expect_sums({ x, weight, bias }, function(leaf, w, b)
        local stream = leaf * 2
        return ((stream + F.gelu(F.layer_norm(stream, { 37 }, w, b))) * up):sum()
      end)
      expect_sums({ x, weight }, function(leaf, w)
        local stream = leaf * 2
        return ((stream + F.gelu(F.rms_norm(stream, { 37 }, w))) * up):sum()
      end)
    end)
    it("join the gradient of the sum, " .. dtype, function()
      expect_sums({ x, up, weight, bias }, function(leaf, more, w, b)
        local y, sum = F.add_layer_norm(leaf * 2, more * 3, { 37 }, w, b)
        return ((sum * 0.5 + F.gelu(y)) * up):sum()
      end)
    end)
  end
  it("of a 16-bit norm of a float32 stream", function()
    gb.manual_seed(6)
    local x, weight, up = gb.randn(5, 48), gb.randn(48), gb.randn(5, 48)
    expect_sums({ x, weight }, function(leaf, w)
      return gb.amp.autocast("bfloat16", function()
        local stream = leaf * 2
        return ((stream + F.gelu(F.layer_norm(stream, { 48 }, w, nil, { out = "autocast" }))) * up):sum()
      end)
    end)
  end)
  it("leave a sum alone that somebody else holds", function()
    local x, held = gb.randn(3, 8):requires_grad_(true), nil
    local y, sum = F.add_layer_norm(x * 1, x * 2, { 8 })
    sum:register_hook(function(g) held = g end)
    local total = y:sum() + (sum * sum):sum()
    total:backward()
    expect(held):to_be_close(2 * sum:detach(), 1e-6)
  end)
  it("of long rows, and of rows that are no rows of memory", function()
    gb.manual_seed(7)
    expect_sums({ gb.randn(3, 9000) }, function(leaf)
      local stream = leaf * 2
      return (stream * stream + F.layer_norm(stream, { 9000 })):sum()
    end)
    expect_sums({ gb.randn(9, 4) }, function(leaf)
      local stream = (leaf * 2):t()
      return (stream * stream + F.layer_norm(stream, { 9 }) * stream):sum()
    end)
  end)
end)

describe("gradients of norms in 16 bits as well", function()
  gb.manual_seed(12)
  local x, branch, weight, up = gb.randn(5, 48), gb.randn(5, 48), gb.randn(48), gb.randn(5, 48)
  -- A stream of float32 that a branch of 16 bits is added to, normalised.
  local ways = {
    function(v, b, w) return F.add_layer_norm(b, v, { 48 }, w, nil, { out = "autocast" }) end,
    function(v, b, w) return F.add_layer_norm(v, b, { 48 }, w) end,
    function(v, b, w) return F.layer_norm(v + b, { 48 }, w, nil, { out = "autocast" }) end,
    function(v, b, w) return F.rms_norm(b + v, { 48 }, w) end,
    function(v, b, w) -- the norm's gradient comes to that of the sum
      local sum = v + b
      return F.gelu(F.layer_norm(sum, { 48 }, w)) + sum
    end,
    function(v, b, w) -- and is not the last to come
      local sum = v + b
      local y = sum:exp()
      return F.layer_norm(sum, { 48 }, w) * y + y
    end,
    function(v, b, w) -- two norms of one sum
      local sum = v + b
      return F.layer_norm(sum, { 48 }, w) * F.rms_norm(sum, { 48 }, w)
    end,
  }
  for i, way in ipairs(ways) do
    it(("are those that a cast makes, %d"):format(i), function()
      for _, dtype in ipairs { "bfloat16", "float16" } do
        expect_sums({ x, branch, weight }, function(v, b, w)
          return gb.amp.autocast(dtype, function() return (way(v * 2, (b * 3):to(dtype), w) * up):sum() end)
        end)
      end
    end)
  end
  it("need no cast", function()
    for i, casts in ipairs { 2, 1, 2, 1, 1 } do -- only those of the branch's own .to, and of a y in 16 bits
      local v, b, w = x:clone():requires_grad_(true), branch:clone():requires_grad_(true),
        weight:clone():requires_grad_(true)
      local loss = gb.amp.autocast("bfloat16", function()
        return (ways[i](v * 2, (b * 3):to("bfloat16"), w) * up):sum()
      end)
      expect(backward_ops(function() loss:backward() end).cast):to_be(casts)
    end
  end)
  it("follow a hook that changes the gradient in place", function()
    local function by(change)
      local b = branch:clone():requires_grad_(true)
      local sum = x + (b * 3):to("bfloat16")
      sum:register_hook(change)
      F.layer_norm(sum, { 48 }, weight):sum():backward()
      return b.grad
    end
    local one = by(function(g) return g * 2 end)
    expect(by(function(g) g:mul_(2) end)):to_equal_bits(one)
  end)
end)

-- A table of rows that is also the last layer, and a table of its own.
local Tied = nn.Module:extend("Tied")
function Tied:init(dtype)
  self.tokens, self.positions = nn.Embedding(23, 8, { dtype = dtype }), nn.Embedding(5, 8, { dtype = dtype })
  self.norm = nn.LayerNorm(8, { dtype = dtype })
end
function Tied:loss(ids, targets)
  local x = self.tokens(ids) + self.positions(gb.arange(5))
  return F.linear_cross_entropy(self.norm(x):flatten(1, 2), self.tokens.weight, targets:flatten())
end

describe("gradients of tables", function()
  for _, dtype in ipairs { "float32", "float64" } do
    it("go into an optimizer's memory, " .. dtype, function()
      local seen = {}
      for run = 1, 2 do
        gb.manual_seed(8)
        local model = Tied(dtype)
        local opt = optim.AdamW(model:parameters(), { lr = 0.01 })
        local function step(batches)
          opt:zero_grad()
          for _ = 1, batches do
            model:loss(gb.randint(0, 23, { 4, 5 }), gb.randint(0, 23, { 4, 5 })):backward()
          end
          opt:step()
        end
        local function steps() for batches = 1, 3 do step(batches) end end
        if run == 1 then steps() else gb.anomaly(steps) end
        seen[run] = {}
        for i, p in ipairs(model:parameters()) do
          seen[run][2 * i - 1], seen[run][2 * i] = p:detach():clone(), p.grad:clone()
        end
      end
      expect_same_bits(seen[1], seen[2])
    end)
  end
  it("copy and clear nothing", function()
    gb.manual_seed(9)
    local model = Tied()
    local opt = optim.SGD(model:parameters(), { lr = 0.1 })
    opt:zero_grad()
    local loss = model:loss(gb.randint(0, 23, { 4, 5 }), gb.randint(0, 23, { 4, 5 }))
    local calls = backward_ops(function() loss:backward() end)
    expect(calls.add):to_be(0)
    expect(calls.copy):to_be(0)
  end)
  it("leave a padding row alone, and rows that were not picked", function()
    local table_ = nn.Embedding(6, 3, { padding_idx = 2 })
    local opt = optim.SGD(table_:parameters(), { lr = 1 })
    opt:zero_grad()
    for _ = 1, 2 do table_(gb.tensor({ 1, 2, 1 }, { dtype = "int64" })):sum():backward() end
    local wanted = gb.zeros(6, 3)
    wanted[2] = 4
    expect(table_.weight.grad):to_equal_bits(wanted)
  end)
end)

describe("gradients of norms' parameters", function()
  local layers = {
    layer_norm = function() return nn.LayerNorm(6) end, rms_norm = function() return nn.RMSNorm(6) end,
    batch_norm = function() return nn.BatchNorm1d(6) end, group_norm = function() return nn.GroupNorm(2, 6) end,
  }
  for name, layer in pairs(layers) do
    it("are made in an optimizer's memory, " .. name, function()
      local seen = {}
      for run = 1, 2 do
        gb.manual_seed(11)
        local model, x, up = layer(), gb.randn(5, 6), gb.randn(5, 6)
        local opt = optim.SGD(model:parameters(), { lr = 0.1 })
        local function backward()
          opt:zero_grad()
          local loss = (model(x) * up):sum()
          expect(backward_ops(function() loss:backward() end).copy):to_be(run == 1 and 0 or #model:parameters())
          for _ = 1, 2 do (model(x) * up):sum():backward() end -- now into sums that are there
        end
        if run == 1 then backward() else gb.anomaly(backward) end
        seen[run] = {}
        for i, p in ipairs(model:parameters()) do seen[run][i] = p.grad:clone() end
      end
      expect_same_bits(seen[1], seen[2])
    end)
  end
  it("are summed where weight and bias are one tensor", function()
    local w, x = gb.ones(6):requires_grad_(true), gb.randn(5, 6)
    local opt = optim.SGD({ w }, { lr = 0.1 })
    opt:zero_grad()
    F.layer_norm(x, { 6 }, w, w):sum():backward()
    local one, other = gb.ones(6):requires_grad_(true), gb.ones(6):requires_grad_(true)
    F.layer_norm(x, { 6 }, one, other):sum():backward()
    expect(w.grad):to_equal_bits(one.grad + other.grad)
  end)
end)

describe("gradients of parts", function()
  local made = { "add", "as_strided_backward", "copy", "fill" }
  -- How often backward runs what puts gradients together, of a result that is used by parts.
  local function costs(value, parts)
    local loss = parts(value:clone():requires_grad_(true) * 2)
    local calls = backward_ops(function() loss:backward() end)
    local counts = {}
    for i, op in ipairs(made) do counts[i] = calls[op] end
    return table.concat(counts, " ")
  end
  local function weighted_sum(parts)
    local sum = 0
    for i, part in ipairs(parts) do sum = sum + (part:exp() * i):sum() end
    return sum
  end
  gb.manual_seed(10)
  local x = gb.randn(4, 6, 5)
  local ways = {
    { "chunks", 3, 0, function(y) return y:chunk(3, 2) end },
    { "splits of unequal lengths", 3, 0, function(y) return y:split({ 1, 3, 2 }, 2) end },
    { "an unbound dim", 6, 0, function(y) return y:unbind(2) end },
    { "rows", 4, 0, function(y) return y:unbind(1) end },
    { "columns", 5, 0, function(y) return y:unbind(3) end },
    { "parts with room between them", 2, 3, function(y) return { y:narrow(2, 2, 1), y:narrow(2, 4, 2) } end },
    { "a slice with a step and parts", 1, 2, function(y) return { y:slice(2, 1, 5, 2), y:narrow(2, 2, 2) } end },
    { "the last of a dim", 1, 1, function(y) return { y:select(2, -1) } end },
  }
  for _, way in ipairs(ways) do
    it("are written into their places: " .. way[1], function()
      local function loss(leaf) return weighted_sum(way[4](leaf * 2)) end
      for _, dtype in ipairs { "float32", "float64", "bfloat16" } do expect_sums({ x:to(dtype) }, loss) end
      if way[2] > 1 then
        expect(costs(x, function(y) return weighted_sum(way[4](y)) end)):to_be(("0 0 %d %d"):format(way[2], way[3] + 1))
      end
    end)
  end
  it("are summed where they overlap, or meet another gradient", function()
    local uses = {
      function(y) return { y:narrow(2, 1, 4), y:narrow(2, 3, 4) } end,
      function(y) return { y:select(2, 1), y:select(2, 2), y:select(2, 1), y:narrow(2, 1, 2) } end,
      function(y) return { y:select(2, 1), y:select(1, 1), y:select(2, 2) } end,
      function(y) return { y:select(2, 1), y, y:select(2, 2) } end,
      function(y) return { y, y:narrow(2, 2, 3), y:narrow(2, 5, 2) } end,
      function(y) return { y:narrow(2, 1, 3):t(), y:diagonal(), y:narrow(2, 4, 3):t() } end,
    }
    for i, use in ipairs(uses) do
      local value = i == 6 and x:select(3, 1):contiguous() or x
      expect_sums({ value }, function(leaf) return weighted_sum(use(leaf * 2)) end)
    end
  end)

  -- Attention over the packed query, key and value of `packed` [batch, time, (heads + 2 * groups) * 4].
  local function attend(packed, heads, groups)
    local b, t = packed:size(1), packed:size(2)
    local parts = packed:unflatten(3, { heads + 2 * groups, 4 }):split({ heads, groups, groups }, 3)
    for i, part in ipairs(parts) do parts[i] = part:transpose(2, 3) end
    local y = F.scaled_dot_product_attention(parts[1], parts[2], parts[3], nil,
      { is_causal = true, enable_gqa = heads ~= groups })
    return y:transpose(2, 3):reshape(b, t, heads * 4), parts
  end
  for _, shape in ipairs { { 2, 5, 3, 3 }, { 2, 5, 4, 2 }, { 1, 1, 2, 2 }, { 1, 7, 2, 1 }, { 3, 1, 2, 2 } } do
    it(("of query, key and value are made in their places: %d x %d, %d of %d heads"):format(table.unpack(shape)),
      function()
        local b, t, heads, groups = table.unpack(shape)
        local value, up = gb.randn(b, t, (heads + 2 * groups) * 4), gb.randn(b, t, heads * 4)
        local function loss(y) return ((attend(y, heads, groups)) * up):sum() end
        expect(costs(value, loss)):to_be("0 0 0 1")
        for _, dtype in ipairs { "float32", "float64", "bfloat16" } do
          local v = value:to(dtype)
          local one = gradients({ v }, function(leaf) return loss(leaf * 2) end)
          local apart
          gb.anomaly(function() apart = gradients({ v }, function(leaf) return loss(leaf * 2) end) end)
          expect(one[1]:eq(apart[1]):all():item()):to_be(true) -- but for the sign of zeros
        end
      end)
  end
  it("of a key that somebody else uses or sees are not written over", function()
    local value, up = gb.randn(2, 5, 24), gb.randn(2, 5, 8)
    for _, which in ipairs { 1, 2, 3 } do
      local seen, before
      local function loss(leaf)
        local y, parts = attend(leaf * 2, 2, 2)
        parts[which]:register_hook(function(g) seen, before = g, g:clone() end)
        return (y * up):sum() + (parts[which % 3 + 1] * parts[which]):sum()
      end
      expect_sums({ value }, loss)
      gradients({ value }, loss)
      expect(seen):to_equal_bits(before)
    end
  end)
  it("of a key that is kept are not what hooks of the whole write to", function()
    local value, up = gb.randn(2, 5, 24), gb.randn(2, 5, 8)
    local function kept(hook, by_hook)
      local leaf, seen = value:clone():requires_grad_(true), nil
      local whole = leaf * 2
      if not by_hook then whole:retain_grad() end
      whole:register_hook(hook)
      local y, parts = attend(whole, 2, 2)
      if by_hook then parts[2]:register_hook(function(g) seen = g end) else parts[2]:retain_grad() end
      (y * up):sum():backward()
      return by_hook and seen or parts[2].grad, whole
    end
    local plain = kept(function() end)
    for _, by_hook in ipairs { false, true } do
      expect(kept(function(g) gb.no_grad(function() g:mul_(10) end) end, by_hook)):to_equal_bits(plain)
    end
    local part, whole = kept(function() end)
    local before = whole.grad:clone()
    gb.no_grad(function() part:mul_(100) end)
    expect(whole.grad):to_equal_bits(before)
    -- nor what other tensors keep, or the caller gave
    local leaf, given = gb.ones(3):requires_grad_(true), gb.ones(3)
    local first, second = leaf * 1, leaf * 2
    first:retain_grad()
    second:retain_grad()
    local sum = first + second
    sum:backward(given)
    first.grad:mul_(10)
    expect(second.grad):to_equal_bits(given)
    expect(given):to_equal_bits(gb.ones(3))
  end)
  it("do not fill the rest of the memory that a given gradient lies in", function()
    local given = gb.randn(2, 3, 4)
    local before, leaf = given:clone(), gb.randn(2, 3, 4):requires_grad_(true)
    local y = leaf * 2
    y:select(2, 1):backward(given:select(2, 1))
    expect(given):to_equal_bits(before)
    local wanted = gb.zeros(2, 3, 4)
    wanted:select(2, 1):copy_(given:select(2, 1) * 2)
    expect(leaf.grad):to_equal_bits(wanted)
  end)
  it("go through what runs again, and through a second backward", function()
    local value, up = gb.randn(2, 5, 24), gb.randn(2, 5, 8)
    expect_sums({ value }, function(leaf)
      return gb.recompute(function(z) return ((attend(z * 3, 2, 2)) * up):sum() end, leaf * 2)
    end)
    local leaf = value:clone():requires_grad_(true)
    local loss = weighted_sum((leaf * 2):chunk(3, 3))
    loss:backward(nil, { retain_graph = true })
    local once = leaf.grad:clone()
    leaf.grad = nil
    loss:backward()
    expect(leaf.grad):to_equal_bits(once)
  end)
end)

gb.test.finish()
