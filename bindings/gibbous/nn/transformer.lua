-- nn/transformer.lua - encoder and decoder layers with PyTorch's parameter names, and the blocks that recipes share.
--
-- Inside, x is [batch, time, size]. The masks of PyTorch's layers are PyTorch's: bool, true: may not look, or float,
-- added. Those of TransformerBlock are scaled_dot_product_attention's: bool, true: may look.

local gb, native = ...
local fail, drop, class_of, keeps_nothing = native.fail, native.drop, native.class_of, native.keeps_nothing
local layer, method, parameter, refuse = native.layer, native.layer_method, native.empty_parameter, native.refuse_more
local nn = gb.nn
local F, init = nn.functional, nn.init
local format, floor, sqrt, ipairs, setmetatable = string.format, math.floor, math.sqrt, ipairs, setmetatable
local rawequal = rawequal

-- A class that other layers are made of, without a name of its own in gb.nn.
local function inner(name)
  local class = nn.Module:extend(name)
  class._library = "calls"
  return class
end

local function check_share(who, name, p)
  if not (p >= 0 and p <= 1) then fail(format("%s: %s lies between 0 and 1, got %s", who, name, native.shown(p))) end
end

local function check_heads(who, size, heads)
  if size % heads ~= 0 then fail(format("%s: %d heads do not divide the size %d", who, heads, size)) end
end

-- x in training with elements dropped, as it is else.
local function dropped(self, x)
  if not self.training or self.dropout == 0 then return x end
  return F.dropout(x, self.dropout, true)
end

-- What a branch adds to its input: x, in training with elements or samples dropped.
local function branch(self, x) return dropped(self, self.drop_path(x)) end

-- x [batch, time, heads * dim] as [batch, heads, time, dim].
local function by_heads(x, heads) return x:unflatten(-1, { heads, x:size(-1) // heads }):transpose(2, 3) end

-- The same turned back.
local function side_by_side(x) return x:transpose(2, 3):flatten(3, 4) end

-- {==== attention ====

-- A mask as numbers that are added; a bool one stands for where nothing is seen.
local function as_numbers(mask)
  if mask.dtype ~= "bool" then return mask end
  return gb.zeros(mask.shape, { device = mask.device }):masked_fill(mask, -math.huge)
end

-- A mask of scaled_dot_product_attention, or none, that hides what padding [batch, source] hides too.
local function hide_padding(mask, padding)
  if not padding then return mask end
  padding = (padding.ndim == 1 and padding:unsqueeze(1) or padding):unsqueeze(2):unsqueeze(2)
  if mask and (mask.dtype ~= "bool" or padding.dtype ~= "bool") then
    return as_numbers(mask.dtype == "bool" and mask:logical_not() or mask) + as_numbers(padding)
  end
  if padding.dtype ~= "bool" then return padding end
  local seen = padding:logical_not()
  return mask and mask:logical_and(seen) or seen
end

local MultiheadAttention = layer("gb.nn.MultiheadAttention(size: size, heads: size; bias: bool = true, dropout: \z
  number = 0, is_causal: bool = false, add_bias_kv: bool = false, add_zero_attn: bool = false, batch_first: bool = \z
  true, kdim?: size, vdim?: size, dtype?: dtype) -> module: \z
  Attention in heads over x [batch, time, size], or [time, batch, size] without batch_first: one projection to query, \z
  key and value, heads, one projection back. kdim, vdim: features of the keys and of the values, where they are not \z
  those of the queries. add_bias_kv: one more key and value, which are trained; add_zero_attn: one more of zeros; all \z
  queries see them. Errors: heads that do not divide the size. Example: local y = gb.nn.MultiheadAttention(8, 2, \z
  { is_causal = true })(gb.rand(1, 5, 8))",
  function(self, size, heads, o)
  check_heads("MultiheadAttention", size, heads)
  check_share("MultiheadAttention", "dropout", o.dropout)
  if size > math.maxinteger // 3 then fail(format("MultiheadAttention: the size %d is too large", size)) end
  local options = { bias = o.bias, dtype = o.dtype }
  self.size, self.heads, self.dropout, self.is_causal, self.batch_first = size, heads, o.dropout, o.is_causal,
    o.batch_first
  if (o.kdim or size) == size and (o.vdim or size) == size then
    self.qkv = nn.Linear(size, 3 * size, options)
    -- PyTorch's: Xavier over all three for the projection in (Linear's draw, within another bound)
    gb.no_grad(function() self.qkv.weight:mul_(sqrt(6 / (4 * size)) * sqrt(size)) end)
  else
    self.q_proj = nn.Linear(size, size, options)
    self.k_proj, self.v_proj = nn.Linear(o.kdim or size, size, options), nn.Linear(o.vdim or size, size, options)
    for _, part in ipairs { self.q_proj, self.k_proj, self.v_proj } do init.xavier_uniform_(part.weight) end
  end
  if o.add_bias_kv then
    self.bias_k = init.xavier_normal_(parameter(o, 1, 1, size))
    self.bias_v = init.xavier_normal_(parameter(o, 1, 1, size))
  end
  self.add_zero_attn = o.add_zero_attn
  self.proj = nn.Linear(size, size, options)
  for _, part in ipairs { self.qkv or self.q_proj, self.k_proj or self.qkv, self.v_proj or self.qkv, self.proj } do
    if part.bias then init.zeros_(part.bias) end
  end
end, true)

-- PyTorch's names, for load_state_dict. It packs the biases also where it does not pack the weights.
function MultiheadAttention._names_elsewhere(self)
  local names = { ["out_proj.weight"] = { "proj.weight" }, ["out_proj.bias"] = { "proj.bias" } }
  if self.qkv then
    names.in_proj_weight, names.in_proj_bias = { "qkv.weight" }, { "qkv.bias" }
  else
    for _, part in ipairs { "q_proj", "k_proj", "v_proj" } do names[part .. "_weight"] = { part .. ".weight" } end
    names.in_proj_bias = { "q_proj.bias", "k_proj.bias", "v_proj.bias" }
  end
  return names
end

-- Query, key and value of x over itself, each [batch, heads, time, dim]. They are chosen before they are turned:
-- gradients are put together in the packed layout.
local function project_packed(self, x)
  local packed = self.qkv(x)
  local heads = packed:unflatten(-1, { 3, self.heads, self.size // self.heads })
  if keeps_nothing(self.qkv) then drop(packed) end
  local function part(i)
    local chosen = heads:select(3, i)
    local turned = chosen:transpose(2, 3)
    drop(chosen)
    return turned
  end
  local q, k, v = part(1), part(2), part(3)
  drop(heads)
  return q, k, v
end

-- Query, key and value of three tensors. Rows of the packed projection serve one each, unless it is more than a weight
-- and a bias: then it is called as it is.
local function project_each(self, query, key, value)
  local heads, size, qkv = self.heads, self.size, self.qkv
  if not qkv then
    return by_heads(self.q_proj(query), heads), by_heads(self.k_proj(key), heads), by_heads(self.v_proj(value), heads)
  end
  if not keeps_nothing(qkv) then
    local of_query, of_key = qkv(query), qkv(key)
    local of_value = rawequal(key, value) and of_key or qkv(value)
    return by_heads(of_query:narrow(-1, 1, size), heads), by_heads(of_key:narrow(-1, size + 1, size), heads),
      by_heads(of_value:narrow(-1, 2 * size + 1, size), heads)
  end
  local weight, bias = qkv.weight, qkv.bias
  local function part(i, x)
    local first = (i - 1) * size + 1
    return by_heads(F.linear(x, weight:narrow(1, first, size), bias and bias:narrow(1, first, size)), heads)
  end
  return part(1, query), part(2, key), part(3, value)
end

-- The product of heads, and the share that each query [.., time] gives each key, which no fused op tells. A query that
-- sees no key has a product of zeros, as that of the fused op is.
local function attend_openly(q, k, v, mask, is_causal, dropout)
  local scores = q:matmul(k:transpose(-2, -1)) * q:size(-1) ^ -0.5
  if is_causal then
    local later = gb.ones({ q:size(-2), k:size(-2) }, { dtype = "bool", device = q.device }):triu(1)
    scores = scores:masked_fill(later, -math.huge)
  end
  if mask and mask.dtype == "bool" then scores = scores:masked_fill(mask:logical_not(), -math.huge)
  elseif mask then scores = scores + mask end
  local blind = (mask or is_causal) and scores:eq(-math.huge):all(-1, { keepdim = true })
  local weights = (blind and scores:masked_fill(blind, 0) or scores):softmax(-1)
  if blind then weights = weights:masked_fill(blind, 0) end
  return F.dropout(weights, dropout, true):matmul(v), weights
end

-- Keys or values [batch, heads, source, dim] with those that all queries see behind them: a trained one, one of zeros.
local function with_more(self, x, trained)
  local shape = x.shape
  local parts = { x }
  if trained then parts[2] = by_heads(trained:expand(shape[1], 1, self.size):to(x.dtype), self.heads) end
  shape[3] = 1
  if self.add_zero_attn then parts[#parts + 1] = x:new_zeros(shape) end
  return gb.cat(parts, 3)
end

-- A mask (true: may look; or numbers) with so many keys more, which all may look at; `free` is what says so.
local function with_free(mask, more, free)
  local shape = mask.shape
  shape[#shape] = more
  return gb.cat({ mask, gb.full(shape, free, { dtype = mask.dtype, device = mask.device }) }, -1)
end

-- The keys before each query and at it, as a mask, joined with another one.
local function with_causality(mask, time, source, device)
  local seen = gb.ones({ time, source }, { dtype = "bool", device = device }):tril()
  if not mask then return seen end
  return mask.dtype == "bool" and mask:logical_and(seen) or mask + as_numbers(seen:logical_not())
end

-- What a role's tensor has to be, or an error.
local function check_side(self, role, x, features)
  if x.ndim ~= 3 or x:size(3) ~= features then
    fail(format("MultiheadAttention expects %s %s of %d features, got [%s]", role,
      self.batch_first and "[batch, time, size]" or "[time, batch, size]", features, table.concat(x.shape, ", ")))
  end
end

method(MultiheadAttention, "MultiheadAttention:forward(query: tensor, key?: tensor, value?: tensor, mask?: tensor; \z
  key_padding_mask?: tensor, attn_mask?: tensor, is_causal?: bool, need_weights: bool = false, average_attn_weights: \z
  bool = true) -> tensor, tensor: Called as module(x, mask), of x over itself, or as module(query, key, value, mask). \z
  mask is scaled_dot_product_attention's: bool [.., time, source], true: may look, or float, added; attn_mask and \z
  key_padding_mask [batch, source] are PyTorch's: bool, true: may not look. need_weights gives the weights of \z
  attention [batch, time, source] too, before dropout, the mean over heads or each head's own. Example: local y, w = \z
  gb.nn.MultiheadAttention(8, 2)(gb.rand(1, 5, 8), gb.rand(1, 3, 8), gb.rand(1, 3, 8), { need_weights = true })",
  function(self, query, key, value, mask, o)
  if value and not key or key and mask and not value then
    fail(format("MultiheadAttention: a %s without a %s", key and "key" or "value", key and "value" or "key"))
  elseif key and not value then
    key, mask = nil, key
    if mask.ndim == 3 and mask.dtype ~= "bool" and mask:size(3) == self.size then
      fail("MultiheadAttention: a key needs a value; called as module(x, mask) the second is a mask")
    end
  end
  if mask and o.attn_mask then fail("MultiheadAttention takes one of mask and attn_mask, got both") end
  check_side(self, key and "query" or "x", query, self.size)
  local turns = not self.batch_first
  local function enter(x) return turns and x:transpose(1, 2) or x end
  local q, k, v
  if key then
    check_side(self, "key", key, self.k_proj and self.k_proj.weight:size(2) or self.size)
    check_side(self, "value", value, self.v_proj and self.v_proj.weight:size(2) or self.size)
    q, k, v = project_each(self, enter(query), enter(key), enter(value))
  elseif self.qkv then q, k, v = project_packed(self, enter(query))
  else fail("MultiheadAttention with kdim or vdim is called as module(query, key, value)") end
  local hidden = o.attn_mask
  if hidden then
    mask = hidden.ndim == 3 and hidden:unflatten(1, { -1, self.heads }) or hidden
    if mask.dtype == "bool" then mask = mask:logical_not() end
  end
  mask = hide_padding(mask, o.key_padding_mask)
  local is_causal, dropout = self.is_causal, self.training and self.dropout or 0
  if o.is_causal ~= nil then is_causal = o.is_causal end
  if self.bias_k or self.add_zero_attn then
    if is_causal then mask, is_causal = with_causality(mask, q:size(3), k:size(3), q.device), false end
    local source = k:size(3)
    k, v = with_more(self, k, self.bias_k), with_more(self, v, self.bias_v)
    if mask then mask = with_free(mask, k:size(3) - source, mask.dtype == "bool" and true or 0.0) end
  end
  local y, weights
  if o.need_weights then y, weights = attend_openly(q, k, v, mask, is_causal, dropout)
  else y = F.scaled_dot_product_attention(q, k, v, mask, { is_causal = is_causal, dropout_p = dropout }) end
  drop(q) drop(k) drop(v)
  local turned = y:transpose(2, 3)
  drop(y)
  local joined = turned:flatten(3, 4)
  drop(turned)
  local result = self.proj(joined)
  if keeps_nothing(self.proj) then drop(joined) end
  result = turns and result:transpose(1, 2) or result
  if weights then return result, o.average_attn_weights and weights:mean(2) or weights end
  return result
end)

function MultiheadAttention:extra() return format("%d heads%s", self.heads, self.is_causal and ", causal" or "") end

-- ====}

-- {==== PyTorch's layers ====

-- Attention by PyTorch's parameter names, of x over itself or over a memory.
local Attention = inner("Attention")

function Attention:init(size, heads, o)
  self.size, self.heads, self.dropout = size, heads, o.dropout
  self.in_proj_weight = init.xavier_uniform_(parameter(o, 3 * size, size))
  if o.bias then self.in_proj_bias = init.zeros_(parameter(o, 3 * size)) end
  self.out_proj = nn.Linear(size, size, { bias = o.bias, dtype = o.dtype })
  if o.bias then init.zeros_(self.out_proj.bias) end
end

-- Some of query, key and value of x: `count` of them from the first-th on, each [batch, heads, time, dim].
function Attention:project(x, first, count)
  local from, rows, bias = (first - 1) * self.size + 1, count * self.size, self.in_proj_bias
  local weight = self.in_proj_weight
  if count < 3 then weight, bias = weight:narrow(1, from, rows), bias and bias:narrow(1, from, rows) end
  local packed = F.linear(x, weight, bias):unflatten(-1, { count, self.heads, self.size // self.heads })
  local parts = {}
  for i = 1, count do parts[i] = packed:select(3, i):transpose(2, 3) end
  drop(packed)
  return table.unpack(parts)
end

function Attention:forward(x, memory, mask, is_causal)
  local q, k, v
  if memory then
    q = self:project(x, 1, 1)
    k, v = self:project(memory, 2, 2)
  else q, k, v = self:project(x, 1, 3) end
  local y = F.scaled_dot_product_attention(q, k, v, mask,
    { is_causal = is_causal, dropout_p = self.training and self.dropout or 0 })
  drop(q) drop(k) drop(v)
  return self.out_proj(side_by_side(y))
end

function Attention:extra() return format("%d heads", self.heads) end

-- What scaled_dot_product_attention takes, of PyTorch's mask [time, source] or [batch * heads, time, source] and
-- padding [batch, source].
local function joined_mask(mask, padding, heads)
  if mask and mask.ndim == 3 then mask = mask:unflatten(1, { -1, heads }) end
  if mask and mask.dtype == "bool" then mask = mask:logical_not() end
  return hide_padding(mask, padding)
end

-- x as [batch, time, size], from the layout that a layer was made for.
local function enter(self, x, who)
  if x.ndim ~= 2 and x.ndim ~= 3 or x:size(-1) ~= self.d_model then
    fail(format("%s expects %s of %d features, got [%s]", who, self.batch_first and "[batch, time]" or "[time, batch]",
      self.d_model,
      table.concat(x.shape, ", ")))
  end
  if x.ndim == 2 then return x:unsqueeze(1) end
  return self.batch_first and x or x:transpose(1, 2)
end

-- The layout of `like` again.
local function leave(self, y, like)
  if like.ndim == 2 then return y:squeeze(1) end
  return self.batch_first and y or y:transpose(1, 2)
end

-- x + part(x), with the norm of this name before the part or after the sum.
local function residual(self, name, x, part)
  local norm = self[name]
  if self.norm_first then return x + dropped(self, part(norm(x))) end
  return norm(x + dropped(self, part(x)))
end

local function feed_forward(self)
  return function(x) return self.linear2(dropped(self, self.linear1(x))) end
end

-- What both kinds of layers hold.
local function make_layer(self, who, d_model, nhead, o, norms)
  check_heads(who, d_model, nhead)
  check_share(who, "dropout", o.dropout)
  self.d_model, self.nhead, self.dropout, self.batch_first, self.norm_first = d_model, nhead, o.dropout, o.batch_first,
    o.norm_first
  -- for those that are made like this one; a table with a metatable holds no parameters
  self.options = setmetatable(o, {})
  self.self_attn = Attention(d_model, nhead, o)
  if norms == 3 then self.multihead_attn = Attention(d_model, nhead, o) end
  self.linear1 = nn.Linear(d_model, o.dim_feedforward, { bias = o.bias, activation = o.activation, dtype = o.dtype })
  self.linear2 = nn.Linear(o.dim_feedforward, d_model, { bias = o.bias, dtype = o.dtype })
  for i = 1, norms do
    self["norm" .. i] = nn.LayerNorm(d_model, { eps = o.layer_norm_eps, bias = o.bias, dtype = o.dtype })
  end
end

local layer_options = "dim_feedforward: size = 2048, dropout: number = 0.1, activation: \z
  \"relu\"|\"gelu\"|\"gelu_tanh\"|\"silu\" = \"relu\", layer_norm_eps: number = 1e-5, batch_first: bool = false, \z
  norm_first: bool = false, bias: bool = true, dtype?: dtype"
local masks_text = "Masks as PyTorch has them: bool, true: may not look, or float, added; key_padding masks [batch, \z
  source]."

local EncoderLayer = layer("gb.nn.TransformerEncoderLayer(d_model: size, nhead: size; " .. layer_options ..
  ") -> module: Self attention and two linear layers, each added to its input and normalised: after the sum, or \z
  before with norm_first. x [time, batch, d_model], or [batch, time, d_model] with batch_first. Errors: heads that \z
  do not divide the size. Example: local y = gb.nn.TransformerEncoderLayer(8, 2)(gb.rand(5, 3, 8))",
  function(self, d_model, nhead, o) make_layer(self, "TransformerEncoderLayer", d_model, nhead, o, 2) end, true)

method(EncoderLayer, "TransformerEncoderLayer:forward(src: tensor, src_mask?: tensor, src_key_padding_mask?: \z
  tensor; is_causal: bool = false) -> tensor: " .. masks_text ..
  " Example: local y = gb.nn.TransformerEncoderLayer(8, 2)(gb.rand(5, 3, 8), nil, nil, { is_causal = true })",
  function(self, src, mask, padding, o)
    mask = joined_mask(mask, padding, self.nhead)
    local x = enter(self, src, "TransformerEncoderLayer")
    x = residual(self, "norm1", x, function(y) return self.self_attn(y, nil, mask, o.is_causal) end)
    return leave(self, residual(self, "norm2", x, feed_forward(self)), src)
  end)

local DecoderLayer = layer("gb.nn.TransformerDecoderLayer(d_model: size, nhead: size; " .. layer_options ..
  ") -> module: Self attention, attention over a memory and two linear layers, each added to its input and \z
  normalised as in TransformerEncoderLayer. Errors: heads that do not divide the size. Example: local y = \z
  gb.nn.TransformerDecoderLayer(8, 2)(gb.rand(5, 3, 8), gb.rand(7, 3, 8))",
  function(self, d_model, nhead, o) make_layer(self, "TransformerDecoderLayer", d_model, nhead, o, 3) end, true)

method(DecoderLayer, "TransformerDecoderLayer:forward(tgt: tensor, memory: tensor, tgt_mask?: tensor, memory_mask?: \z
  tensor, tgt_key_padding_mask?: tensor, memory_key_padding_mask?: tensor; tgt_is_causal: bool = false, \z
  memory_is_causal: bool = false) -> tensor: " .. masks_text ..
  " Example: local y = gb.nn.TransformerDecoderLayer(8, 2)(gb.rand(5, 3, 8), gb.rand(7, 3, 8))",
  function(self, tgt, memory, mask, memory_mask, padding, memory_padding, o)
    mask, memory_mask = joined_mask(mask, padding, self.nhead), joined_mask(memory_mask, memory_padding, self.nhead)
    local x, source = enter(self, tgt, "TransformerDecoderLayer"),
      enter(self, memory, "TransformerDecoderLayer: the memory")
    x = residual(self, "norm1", x, function(y) return self.self_attn(y, nil, mask, o.tgt_is_causal) end)
    x = residual(self, "norm2", x, function(y) return self.multihead_attn(y, source, memory_mask,
      o.memory_is_causal) end)
    return leave(self, residual(self, "norm3", x, feed_forward(self)), tgt)
  end)

function EncoderLayer:extra() return format("%d, %d heads%s", self.d_model, self.nhead,
  self.norm_first and ", norm first" or "") end
DecoderLayer.extra = EncoderLayer.extra

-- As many copies of a layer, with its weights, one after another, and perhaps a norm at the end.
local function make_stack(self, who, class, model, count, norm)
  if class_of(model) ~= class then
    fail(format("%s is made of copies of a %s, got a %s", who, class.__name, class_of(model).__name))
  end
  local weight = model.linear1.weight
  self.layers = {}
  for i = 1, count do
    self.layers[i] = class(model.d_model, model.nhead, model.options):to(weight.device, weight.dtype)
    self.layers[i]:load_state_dict(model:state_dict())
  end
  self.norm = norm
end

local Encoder = layer("gb.nn.TransformerEncoder(encoder_layer: module, num_layers: size; norm?: module) -> module: \z
  That many copies of a TransformerEncoderLayer, which begin with its weights, and a norm at the end. Example: local \z
  y = gb.nn.TransformerEncoder(gb.nn.TransformerEncoderLayer(8, 2), 2)(gb.rand(5, 3, 8))",
  function(self, encoder_layer, num_layers, o)
  make_stack(self, "TransformerEncoder", EncoderLayer, encoder_layer, num_layers, o.norm)
end, true)

method(Encoder, "TransformerEncoder:forward(src: tensor, mask?: tensor, src_key_padding_mask?: tensor; is_causal: \z
  bool = false) -> tensor: " .. masks_text ..
  " Example: local y = gb.nn.TransformerEncoder(gb.nn.TransformerEncoderLayer(8, 2), 2)(gb.rand(5, 3, 8))",
  function(self, src, mask, padding, o)
    local x = src
    for _, module in ipairs(self.layers) do x = module(x, mask, padding, { is_causal = o.is_causal }) end
    return self.norm and self.norm(x) or x
  end)

local Decoder = layer("gb.nn.TransformerDecoder(decoder_layer: module, num_layers: size; norm?: module) -> module: \z
  That many copies of a TransformerDecoderLayer, which begin with its weights, and a norm at the end. Example: local \z
  y = gb.nn.TransformerDecoder(gb.nn.TransformerDecoderLayer(8, 2), 2)(gb.rand(5, 3, 8), gb.rand(7, 3, 8))",
  function(self, decoder_layer, num_layers, o)
  make_stack(self, "TransformerDecoder", DecoderLayer, decoder_layer, num_layers, o.norm)
end, true)

method(Decoder, "TransformerDecoder:forward(tgt: tensor, memory: tensor, tgt_mask?: tensor, memory_mask?: tensor, \z
  tgt_key_padding_mask?: tensor, memory_key_padding_mask?: tensor; tgt_is_causal: bool = false, memory_is_causal: \z
  bool = false) -> tensor: " .. masks_text ..
  " Example: local y = gb.nn.TransformerDecoder(gb.nn.TransformerDecoderLayer(8, 2), 2)(gb.rand(5, 3, 8), \z
  gb.rand(7, 3, 8))",
  function(self, tgt, memory, mask, memory_mask, padding, memory_padding, o)
    local x, causal = tgt, { tgt_is_causal = o.tgt_is_causal, memory_is_causal = o.memory_is_causal }
    for _, module in ipairs(self.layers) do
      x = module(x, memory, mask, memory_mask, padding, memory_padding, causal)
    end
    return self.norm and self.norm(x) or x
  end)

local Transformer = layer("gb.nn.Transformer(d_model: size = 512, nhead: size = 8; num_encoder_layers: size = 6, \z
  num_decoder_layers: size = 6, custom_encoder?: module, custom_decoder?: module, " .. layer_options .. ") -> module: \z
  An encoder, and a decoder over what it gives (Vaswani et al. 2017), each with a norm at the end. custom_encoder, \z
  custom_decoder: modules that are called in their places, with the same arguments. Example: local y = \z
  gb.nn.Transformer(8, 2, { dim_feedforward = 16 })(gb.rand(7, 3, 8), gb.rand(5, 3, 8))",
  function(self, d_model, nhead, o)
  local function norm() return nn.LayerNorm(d_model, { eps = o.layer_norm_eps, bias = o.bias, dtype = o.dtype }) end
  local counts = { o.num_encoder_layers, o.num_decoder_layers }
  local encoder, decoder = o.custom_encoder, o.custom_decoder
  o.num_encoder_layers, o.num_decoder_layers, o.custom_encoder, o.custom_decoder = nil, nil, nil, nil
  self.encoder = encoder or nn.TransformerEncoder(EncoderLayer(d_model, nhead, o), counts[1], { norm = norm() })
  self.decoder = decoder or nn.TransformerDecoder(DecoderLayer(d_model, nhead, o), counts[2], { norm = norm() })
  for _, p in ipairs(self:parameters()) do
    if p.ndim > 1 then init.xavier_uniform_(p) end
  end
end, true)

method(Transformer, "Transformer:forward(src: tensor, tgt: tensor, src_mask?: tensor, tgt_mask?: tensor, \z
  memory_mask?: tensor, src_key_padding_mask?: tensor, tgt_key_padding_mask?: tensor, memory_key_padding_mask?: \z
  tensor; src_is_causal: bool = false, tgt_is_causal: bool = false, memory_is_causal: bool = false) -> tensor: " ..
  masks_text .. " Example: local y = gb.nn.Transformer(8, 2, { dim_feedforward = 16 })(gb.rand(7, 3, 8), gb.rand(5, \z
  3, 8))",
  function(self, src, tgt, src_mask, tgt_mask, memory_mask, src_padding, tgt_padding, memory_padding, o)
    local memory = self.encoder(src, src_mask, src_padding, { is_causal = o.src_is_causal })
    return self.decoder(tgt, memory, tgt_mask, memory_mask, tgt_padding, memory_padding,
      { tgt_is_causal = o.tgt_is_causal, memory_is_causal = o.memory_is_causal })
  end)

method(Transformer, "Transformer:generate_square_subsequent_mask(size: size) -> tensor: A mask by which no place sees \z
  those behind it: -inf above the diagonal, else 0, where the parameters are. Example: print(gb.nn.Transformer(8, 2, \z
  { dim_feedforward = 16 }):generate_square_subsequent_mask(3))", function(self, size)
    local first = self:parameters()[1]
    return gb.full({ size, size }, -math.huge, { device = first and first.device or nil }):triu(1)
  end)

-- ====}

-- {==== blocks that recipes share ====

local StochasticDepth = layer("gb.nn.StochasticDepth(p: number, mode: \"row\"|\"batch\" = \"row\") -> module: In \z
  training, zero x with probability p and scale it by 1 / (1 - p) else, each sample for itself or the whole batch \z
  (Huang et al. 2016). Errors: p outside 0 .. 1. Example: local y = gb.nn.StochasticDepth(0.2)(x)",
  function(self, p, mode)
  check_share("StochasticDepth", "p", p)
  self.p, self.mode = p, mode
end)

function StochasticDepth:forward(x, more)
  if more ~= nil then refuse(self, "x") end
  native.check_tensor("StochasticDepth", x)
  if not self.training or self.p == 0 then return x end
  if x.ndim == 0 then fail("StochasticDepth expects x [batch, ...], got a 0-d tensor") end
  local shape = { self.mode == "row" and x:size(1) or 1 }
  for i = 2, x.ndim do shape[i] = 1 end
  return x * F.dropout(gb.ones(shape, { dtype = x.dtype, device = x.device }), self.p, true)
end

function StochasticDepth:extra() return format("p = %g, %s", self.p, self.mode) end

local activations = { relu = F.relu, silu = F.silu, sigmoid = F.sigmoid, hardsigmoid = F.hardsigmoid }

local SqueezeExcite = layer("gb.nn.SqueezeExcite(channels: size, squeezed: size; activation: \"relu\"|\"silu\" = \z
  \"relu\", scale_activation: \"sigmoid\"|\"hardsigmoid\" = \"sigmoid\", dtype?: dtype) -> module: Scale each \z
  channel of x [n, channels, h, w] by what two 1 x 1 convolutions make of the means of all channels (Hu et al. \z
  2018). Example: local y = gb.nn.SqueezeExcite(8, 2)(gb.rand(2, 8, 4, 4))",
  function(self, channels, squeezed, o)
    self.fc1 = nn.Conv2d(channels, squeezed, 1, { dtype = o.dtype })
    self.fc2 = nn.Conv2d(squeezed, channels, 1, { dtype = o.dtype })
    self.activation, self.scale_activation = o.activation, o.scale_activation
  end, true)

function SqueezeExcite:forward(x, more)
  if more ~= nil then refuse(self, "x") end
  local means = F.adaptive_avg_pool2d(x, 1)
  return x * activations[self.scale_activation](self.fc2(activations[self.activation](self.fc1(means))))
end

function SqueezeExcite:extra() return format("%s, %s", self.activation, self.scale_activation) end

local PatchEmbed = layer("gb.nn.PatchEmbed(channels: size, width: size, patch: ints; bias: bool = true, dtype?: \z
  dtype) -> module: Images x [n, channels, h, w] cut into patches, each projected to width features: [n, patches, \z
  width] (Dosovitskiy et al. 2021). Errors: images that are no whole number of patches. Example: local y = \z
  gb.nn.PatchEmbed(3, 8, 4)(gb.rand(2, 3, 8, 8))", function(self, channels, width, patch, o)
  self.proj = nn.Conv2d(channels, width, patch, { stride = patch, bias = o.bias, dtype = o.dtype })
end, true)

function PatchEmbed:forward(x, more)
  if more ~= nil then refuse(self, "x") end
  native.check_tensor("PatchEmbed", x)
  local rows, columns = self.proj.weight:size(3), self.proj.weight:size(4)
  if x.ndim ~= 4 or x:size(3) % rows ~= 0 or x:size(4) % columns ~= 0 then
    fail(format("PatchEmbed expects x [n, channels, h, w] of whole patches of %d x %d, got [%s]", rows, columns,
      table.concat(x.shape, ", ")))
  end
  return self.proj(x):flatten(3, 4):transpose(2, 3)
end

-- silu(gate(x)) * up(x), and down again (Shazeer 2020).
local SwiGLU = inner("SwiGLU")

function SwiGLU:init(width, hidden, o)
  local options = { bias = o.bias, dtype = o.dtype }
  self.gate_proj = nn.Linear(width, hidden, { bias = o.bias, dtype = o.dtype, activation = "silu" })
  self.up_proj = nn.Linear(width, hidden, options)
  self.down_proj = nn.Linear(hidden, width, options)
end

function SwiGLU:forward(x)
  local gate, up = self.gate_proj(x), self.up_proj(x)
  local both = gate * up
  drop(gate) drop(up)
  return self.down_proj(both)
end

-- Attention whose keys and values may be fewer than its queries, with rotary positions or without.
local GroupedAttention = inner("GroupedAttention")

function GroupedAttention:init(width, heads, o)
  local options, dim = { bias = o.bias, dtype = o.dtype }, width // heads
  self.heads, self.kv_heads, self.dropout, self.is_causal = heads, o.kv_heads or heads, o.dropout, o.is_causal
  self.window = o.window
  self.rotary, self.interleaved, self.base, self.dim = o.rotary, o.interleaved, o.rotary_base, dim
  self.tables = setmetatable({}, {}) -- no parameters: a table with a metatable is not looked through
  self.q_proj = nn.Linear(width, width, options)
  self.k_proj = nn.Linear(width, self.kv_heads * dim, options)
  self.v_proj = nn.Linear(width, self.kv_heads * dim, options)
  self.o_proj = nn.Linear(width, width, options)
end

-- Cosines and sines [time, dim / 2] of the angles of the positions from start on; those of the last call are kept.
function GroupedAttention:angles(start, time, x)
  local tables, dtype = self.tables, x.dtype == "float64" and "float64" or "float32"
  local key = format("%d %d %s %s", start, time, dtype, x.device)
  if tables.key ~= key then
    local rate =
      (gb.arange(self.dim // 2, { dtype = dtype, device = x.device }) * (-2 / self.dim * math.log(self.base))):exp()
    local angle = (gb.arange(time, { dtype = dtype, device = x.device }) + start):unsqueeze(2) * rate
    tables.key, tables.cos, tables.sin = key, angle:cos(), angle:sin()
  end
  return tables.cos, tables.sin
end

function GroupedAttention:forward(x, mask, start)
  local q, k, v = by_heads(self.q_proj(x), self.heads), by_heads(self.k_proj(x), self.kv_heads),
    by_heads(self.v_proj(x), self.kv_heads)
  if self.rotary then
    local cos, sin = self:angles(start, x:size(2), x)
    q = F.rotary_embedding(q, cos, sin, { interleaved = self.interleaved })
    k = F.rotary_embedding(k, cos, sin, { interleaved = self.interleaved })
  end
  local y = F.scaled_dot_product_attention(q, k, v, mask, { is_causal = self.is_causal, window = self.window,
    dropout_p = self.training and self.dropout or 0, enable_gqa = self.kv_heads < self.heads })
  return self.o_proj(side_by_side(y))
end

function GroupedAttention:extra()
  return format("%d heads%s%s%s", self.heads, self.kv_heads < self.heads and
    format(", %d of keys and values", self.kv_heads) or "",
    self.is_causal and ", causal" or "", self.rotary and ", rotary" or "")
end

local Block = layer("gb.nn.TransformerBlock(width: size, heads: size; kv_heads?: size, hidden?: size, norm_first: \z
  bool = true, norm: \"layer\"|\"rms\" = \"layer\", mlp: \"mlp\"|\"swiglu\" = \"mlp\", activation: string = \z
  \"gelu_tanh\", is_causal: bool = false, window?: size, rotary: bool = false, rotary_base: number = 10000, \z
  interleaved: bool = false, bias: bool = true, dropout: number = 0, drop_path: number = 0, eps: number = 1e-5, \z
  norm_out: \"float32\"|\"autocast\" = \"float32\", dtype?: dtype) -> module: Self attention over x [batch, time, \z
  width] and two layers, each added to its input; called as module(x, mask, { start = }), mask as \z
  scaled_dot_product_attention has it. kv_heads: keys and values are shared by groups of queries. window: a query \z
  sees the keys less than so many positions from its own. Without these and rotary, attention is a \z
  MultiheadAttention. hidden: 4 * width, or 8/3 of it for swiglu, if not given. drop_path: stochastic depth of both \z
  branches. norm_out: out of the norms, as LayerNorm has it. \z
  Errors: heads that do not divide the width or each other. Example: local y = gb.nn.TransformerBlock(8, 2, { norm = \z
  \"rms\", mlp = \"swiglu\", rotary = true, is_causal = true })(gb.rand(2, 5, 8))", function(self, width, heads, o)
  local kv_heads = o.kv_heads or heads
  check_heads("TransformerBlock", width, heads)
  if heads % kv_heads ~= 0 then
    fail(format("TransformerBlock: %d heads of keys and values do not divide %d heads of queries", kv_heads, heads))
  end
  if o.rotary and width // heads % 2 ~= 0 then
    fail(format("TransformerBlock: rotary needs an even number of features per head, got %d / %d", width, heads))
  end
  check_share("TransformerBlock", "dropout", o.dropout)
  local function norm()
    if o.norm == "rms" then return nn.RMSNorm(width, { eps = o.eps, out = o.norm_out, dtype = o.dtype }) end
    return nn.LayerNorm(width, { eps = o.eps, bias = o.bias, out = o.norm_out, dtype = o.dtype })
  end
  self.norm_first, self.dropout, self.sums = o.norm_first, o.dropout, o.norm == "layer"
  self.norm1 = norm()
  if o.rotary or o.window or kv_heads < heads then self.attention = GroupedAttention(width, heads, o)
  else
    self.attention = nn.MultiheadAttention(width, heads,
      { bias = o.bias, dropout = o.dropout, is_causal = o.is_causal, dtype = o.dtype })
  end
  self.norm2 = norm()
  if o.mlp == "swiglu" then self.mlp = SwiGLU(width, o.hidden or (floor(8 * width / 3) + 7) // 8 * 8, o)
  else self.mlp = nn.MLP(width, o.hidden or 4 * width,
    { bias = o.bias, activation = o.activation, dtype = o.dtype }) end
  self.drop_path = nn.StochasticDepth(o.drop_path)
end, true)

method(Block, "TransformerBlock:forward(x: tensor, mask?: tensor; start: count = 0) -> tensor: mask [.., time, \z
  time]: bool, true: may look, or float, added. start: the position of the first time step, for rotary. Errors: what \z
  is not [batch, time, width]. Example: local y = gb.nn.TransformerBlock(8, 2)(gb.rand(2, 5, 8))",
  function(self, x, mask, o)
  if x.ndim ~= 3 then fail(format("TransformerBlock expects x [batch, time, width], got %d dimensions", x.ndim)) end
  local attention, mlp = self.attention, self.mlp
  local function attend(y) return attention(y, mask, attention.rotary and o.start or nil) end
  if not self.norm_first then
    x = self.norm1(x + branch(self, attend(x)))
    return self.norm2(x + branch(self, mlp(x)))
  end
  local free = keeps_nothing(self) and drop or function() end
  local sum
  local normed = self.norm1(x)
  local added = branch(self, attend(normed))
  free(normed)
  if self.sums then normed, sum = self.norm2:add(added, x)
  else
    sum = x + added
    normed = self.norm2(sum)
  end
  free(added)
  local second = branch(self, mlp(normed))
  free(normed)
  local y = sum + second
  free(sum) free(second)
  return y
end)

function Block:extra() return self.norm_first and "norm first" or "norm last" end

-- ====}
