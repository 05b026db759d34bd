-- common.lua - what several models here share: layers by the names of their weights. Loaded with dofile.

local gb = require "gibbous"
local F = gb.nn.functional

local common = {}

-- A linear layer.
function common.linear(w, name, x) return F.linear(x, w[name .. ".weight"], w[name .. ".bias"]) end

-- A layer norm over the last dim.
function common.layer_norm(w, name, x, eps)
  return F.layer_norm(x, { x:size(-1) }, w[name .. ".weight"], w[name .. ".bias"], { eps = eps })
end

-- [batch, time, heads * dim] as [batch, heads, time, dim].
function common.by_heads(x, heads) return x:unflatten(-1, { heads, -1 }):transpose(2, 3) end

-- The way back.
function common.side_by_side(x) return x:transpose(2, 3):flatten(3) end

-- Attention over heads of q, k, v [batch, time, width].
function common.attention(q, k, v, heads, mask, options)
  local split = common.by_heads
  q, k, v = split(q, heads), split(k, heads), split(v, heads)
  return common.side_by_side(F.scaled_dot_product_attention(q, k, v, mask, options))
end

-- Batch norm of a batch's own statistics, as in training; more: a residual or an activation behind it.
function common.batch_norm(w, name, x, eps, more)
  return F.batch_norm(x, nil, nil, w[name .. ".weight"], w[name .. ".bias"],
    { training = true, eps = eps, activation = more and more.activation, residual = more and more.residual })
end

-- A convolution, and the batch norm behind it.
function common.conv(w, name, x, options) return F.conv2d(x, w[name .. ".weight"], w[name .. ".bias"], options) end

return common
