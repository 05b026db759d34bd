-- vit.lua - transformers' ViTForImageClassification: patches, a token for the class, norms first.

local gb = require "gibbous"
local F = gb.nn.functional
local common = dofile("tests/models/common.lua")
local linear, layer_norm = common.linear, common.layer_norm
local HEADS, LAYERS, PATCH, EPS = 3, 2, 4, 1e-12

-- The logits of inputs.x [batch, 3, height, width] by the weights w.
return function(w, inputs)
  local patches = common.conv(w, "vit.embeddings.patch_embeddings.projection", inputs.x, { stride = PATCH })
  patches = patches:flatten(3):transpose(2, 3)
  local class = w["vit.embeddings.cls_token"]:expand(patches:size(1), 1, patches:size(3))
  local x = gb.cat({ class, patches:to(class.dtype) }, 2) + w["vit.embeddings.position_embeddings"]
  for i = 0, LAYERS - 1 do
    local block = ("vit.layers.%d."):format(i)
    local y = layer_norm(w, block .. "layernorm_before", x, EPS)
    local q, k = linear(w, block .. "attention.q_proj", y), linear(w, block .. "attention.k_proj", y)
    y = common.attention(q, k, linear(w, block .. "attention.v_proj", y), HEADS)
    x = x + linear(w, block .. "attention.o_proj", y)
    y = layer_norm(w, block .. "layernorm_after", x, EPS)
    x = x + linear(w, block .. "mlp.fc2", F.gelu(linear(w, block .. "mlp.fc1", y)))
  end
  return linear(w, "classifier", layer_norm(w, "vit.layernorm", x, EPS):select(2, 1))
end
