-- gpt2.lua - transformers' GPT2LMHeadModel: causal, norms first, the head shares the embedding's weight.

local gb = require "gibbous"
local F = gb.nn.functional
local common = dofile("tests/models/common.lua")
local layer_norm, attention = common.layer_norm, common.attention
local HEADS, LAYERS = 3, 2

-- GPT-2 keeps the weights of its linear layers as [in, out].
local function conv1d(w, name, x) return F.linear(x, w[name .. ".weight"]:t(), w[name .. ".bias"]) end

-- The logits of inputs.ids [batch, time] by the weights w.
return function(w, inputs)
  local ids = inputs.ids
  local places = gb.arange(ids:size(2), { dtype = "int64", device = ids.device })
  local x = F.embedding(ids, w["transformer.wte.weight"]) + F.embedding(places, w["transformer.wpe.weight"])
  for i = 0, LAYERS - 1 do
    local block = ("transformer.h.%d."):format(i)
    local qkv = conv1d(w, block .. "attn.c_attn", layer_norm(w, block .. "ln_1", x, 1e-5)):chunk(3, -1)
    local y = attention(qkv[1], qkv[2], qkv[3], HEADS, nil, { is_causal = true })
    x = x + conv1d(w, block .. "attn.c_proj", y)
    y = F.gelu(conv1d(w, block .. "mlp.c_fc", layer_norm(w, block .. "ln_2", x, 1e-5)), { approximate = "tanh" })
    x = x + conv1d(w, block .. "mlp.c_proj", y)
  end
  return F.linear(layer_norm(w, "transformer.ln_f", x, 1e-5), w["transformer.wte.weight"])
end
