-- t5.lua - transformers' T5ForConditionalGeneration: encoder and decoder, whose attention is biased by distance and not
-- scaled.

local gb = require "gibbous"
local F = gb.nn.functional
local common = dofile("tests/models/common.lua")
local linear, by_heads = common.linear, common.by_heads
local HEADS, LAYERS, WIDTH, BUCKETS, FARTHEST = 3, 2, 24, 8, 16

-- A norm without a mean, over the last dim.
local function norm(w, name, x) return F.rms_norm(x, { WIDTH }, w[name .. ".weight"], { eps = 1e-6 }) end

-- The bucket of a distance (key's place less query's): exact when near, by its logarithm when far.
local function bucket_of(distance, both)
  local count, first = BUCKETS, 0
  if both then
    count = count // 2
    if distance > 0 then first = count end
    distance = math.abs(distance)
  else
    distance = math.max(-distance, 0)
  end
  local near = count // 2
  if distance < near then return first + distance end
  local far = near + math.floor(math.log(distance / near) / math.log(FARTHEST / near) * (count - near))
  return first + math.min(far, count - 1)
end

-- What is added to the scores [1, heads, time, time]; both: keys after a query count, otherwise they are out of sight.
local function bias(w, name, time, both)
  local buckets, hidden = {}, {}
  for q = 1, time do
    for k = 1, time do
      buckets[#buckets + 1] = bucket_of(k - q, both)
      hidden[#hidden + 1] = not both and k > q
    end
  end
  local table_of = w[name .. ".relative_attention_bias.weight"]
  local index = gb.tensor(buckets, { dtype = "int64", device = table_of.device }):reshape(time, time)
  local y = F.embedding(index, table_of):permute({ 3, 1, 2 }):unsqueeze(1)
  return y:masked_fill(gb.tensor(hidden, { dtype = "bool", device = table_of.device }):reshape(time, time), -1e30)
end

-- Attention of x to memory, added: the bias or none.
local function attend(w, name, x, memory, added)
  local q, k = by_heads(linear(w, name .. ".q", x), HEADS), by_heads(linear(w, name .. ".k", memory), HEADS)
  local y = F.scaled_dot_product_attention(q, k, by_heads(linear(w, name .. ".v", memory), HEADS), added, { scale = 1 })
  return linear(w, name .. ".o", common.side_by_side(y))
end

-- Encoder or decoder: memory is what a decoder's second attention looks at.
local function stack(w, name, ids, memory)
  local x = F.embedding(ids, w["shared.weight"])
  local added = bias(w, name .. ".block.0.layer.0.SelfAttention", ids:size(2), not memory)
  for i = 0, LAYERS - 1 do
    local part = 0
    -- The name of the next sublayer, and x normed for it.
    local function enter()
      local layer = ("%s.block.%d.layer.%d."):format(name, i, part)
      part = part + 1
      return layer, norm(w, layer .. "layer_norm", x)
    end
    local layer, y = enter()
    x = x + attend(w, layer .. "SelfAttention", y, y, added)
    if memory then
      layer, y = enter()
      x = x + attend(w, layer .. "EncDecAttention", y, memory)
    end
    layer, y = enter()
    x = x + linear(w, layer .. "DenseReluDense.wo", F.relu(linear(w, layer .. "DenseReluDense.wi", y)))
  end
  return norm(w, name .. ".final_layer_norm", x)
end

-- The logits of inputs.decoder [batch, time] behind inputs.ids by the weights w.
return function(w, inputs)
  local y = stack(w, "decoder", inputs.decoder, stack(w, "encoder", inputs.ids))
  if w["lm_head.weight"] then return linear(w, "lm_head", y) end
  return F.linear(y * WIDTH ^ -0.5, w["shared.weight"])
end
