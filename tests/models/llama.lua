-- llama.lua - transformers' LlamaForCausalLM: RMS norms, rotary positions, six heads of queries over two of keys,
-- SwiGLU.

local gb = require "gibbous"
local F = gb.nn.functional
local common = dofile("tests/models/common.lua")
local linear, by_heads = common.linear, common.by_heads
local HEADS, KV_HEADS, LAYERS, BASE = 6, 2, 2, 10000

-- An RMS norm over the last dim.
local function norm(w, name, x) return F.rms_norm(x, { x:size(-1) }, w[name .. ".weight"], { eps = 1e-6 }) end

-- Cosines and sines [time, dim / 2] of the angles of the positions.
local function angles(time, dim, like)
  local options = { dtype = like.dtype, device = like.device }
  local rate = (gb.arange(dim // 2, options) * (-2 / dim * math.log(BASE))):exp()
  local angle = gb.arange(time, options):unsqueeze(2) * rate
  return angle:cos(), angle:sin()
end

-- The logits of inputs.ids [batch, time] by the weights w.
return function(w, inputs)
  local x = F.embedding(inputs.ids, w["model.embed_tokens.weight"])
  local cos, sin = angles(x:size(2), x:size(3) // HEADS, x)
  for i = 0, LAYERS - 1 do
    local block = ("model.layers.%d."):format(i)
    local y = norm(w, block .. "input_layernorm", x)
    local q = by_heads(linear(w, block .. "self_attn.q_proj", y), HEADS)
    local k = by_heads(linear(w, block .. "self_attn.k_proj", y), KV_HEADS)
    local v = by_heads(linear(w, block .. "self_attn.v_proj", y), KV_HEADS)
    q, k = F.rotary_embedding(q, cos, sin), F.rotary_embedding(k, cos, sin)
    y = common.side_by_side(F.scaled_dot_product_attention(q, k, v, nil, { is_causal = true, enable_gqa = true }))
    x = x + linear(w, block .. "self_attn.o_proj", y)
    y = norm(w, block .. "post_attention_layernorm", x)
    y = F.silu(linear(w, block .. "mlp.gate_proj", y)) * linear(w, block .. "mlp.up_proj", y)
    x = x + linear(w, block .. "mlp.down_proj", y)
  end
  return linear(w, "lm_head", norm(w, "model.norm", x))
end
