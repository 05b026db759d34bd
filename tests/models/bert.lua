-- bert.lua - transformers' BertForMaskedLM: norms last, padded texts, the head shares the embedding's weight.

local gb = require "gibbous"
local F = gb.nn.functional
local common = dofile("tests/models/common.lua")
local linear, layer_norm = common.linear, common.layer_norm
local HEADS, LAYERS, EPS = 3, 2, 1e-12

-- The logits of inputs.ids [batch, time] by the weights w; inputs.mask is 0 at padding, inputs.types says which
-- sentence a token is of.
return function(w, inputs)
  local ids, embeddings = inputs.ids, "bert.embeddings."
  local places = gb.arange(ids:size(2), { dtype = "int64", device = ids.device })
  local x = F.embedding(ids, w[embeddings .. "word_embeddings.weight"])
    + F.embedding(places, w[embeddings .. "position_embeddings.weight"])
    + F.embedding(inputs.types, w[embeddings .. "token_type_embeddings.weight"])
  x = layer_norm(w, embeddings .. "LayerNorm", x, EPS)
  local mask = inputs.mask:ne(0):unsqueeze(2):unsqueeze(2) -- [batch, 1, 1, time]
  for i = 0, LAYERS - 1 do
    local block = ("bert.encoder.layer.%d."):format(i)
    local self = block .. "attention.self."
    local q, k, v = linear(w, self .. "query", x), linear(w, self .. "key", x), linear(w, self .. "value", x)
    local y = linear(w, block .. "attention.output.dense", common.attention(q, k, v, HEADS, mask))
    x = layer_norm(w, block .. "attention.output.LayerNorm", y + x, EPS)
    y = linear(w, block .. "output.dense", F.gelu(linear(w, block .. "intermediate.dense", x)))
    x = layer_norm(w, block .. "output.LayerNorm", y + x, EPS)
  end
  local head = "cls.predictions."
  x = F.gelu(linear(w, head .. "transform.dense", x))
  x = layer_norm(w, head .. "transform.LayerNorm", x, EPS)
  return F.linear(x, w[embeddings .. "word_embeddings.weight"], w[head .. "bias"])
end
