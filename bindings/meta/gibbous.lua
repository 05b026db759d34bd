---@meta gibbous
-- Made by cmake/reference.lua: types for the Lua language server.
-- luacheck: ignore

---@alias gb.DType "float64"|"float32"|"float16"|"bfloat16"|"int64"|"int32"|"int16"|"int8"|"uint8"|"bool"
---@class gb.Options
---@field dtype? gb.DType
---@field device? string
---@field requires_grad? boolean

---@class gb.precision
---@field name string
---@field parameters? gb.DType
---@field autocast string|false
---@field scaler boolean

---@class gb.Tensor
---@field device string Where the elements lie, such as "cpu" or "cuda:0".
---@field dtype string The type of the elements, such as "float32".
---@field grad? gb.Tensor The gradient that backward added up, or nil; may be set to nil or a tensor of the same shape and dtype (of a 16-bit one in float32 too, as an optimizer keeps them).
---@field is_leaf boolean Was it made by the recipe, not by an op that is recorded?
---@field is_parameter boolean Do modules discover it and optimizers train it?
---@field ndim integer The number of dimensions.
---@field requires_grad boolean Are gradients by this tensor wanted, or is it a result of such? May be set.
---@field shape any[] The sizes of the dimensions.
---@operator add(gb.Tensor|number): gb.Tensor
---@operator div(gb.Tensor|number): gb.Tensor
---@operator idiv(gb.Tensor|number): gb.Tensor
---@operator mod(gb.Tensor|number): gb.Tensor
---@operator mul(gb.Tensor|number): gb.Tensor
---@operator pow(gb.Tensor|number): gb.Tensor
---@operator sub(gb.Tensor|number): gb.Tensor
---@operator unm: gb.Tensor
---@operator len: integer
local tensor = {}

---@class gb.Module
---@overload fun(...): any
local Module = {}

---@class gb.DataLoader
local DataLoader = {}

---@class gb.GradScaler
local GradScaler = {}

---@class gb.LayerNorm: gb.Module
local LayerNorm = {}

---@class gb.ModuleDict: gb.Module
local ModuleDict = {}

---@class gb.ModuleList: gb.Module
local ModuleList = {}

---@class gb.Optimizer
local Optimizer = {}

---@class gb.Schedule
local Schedule = {}

---@class gb.Sequential: gb.Module
local Sequential = {}

---@class gb.ctx
local ctx = {}

---@class gb.dataset
local dataset = {}

---@class gb.expect
local expect = {}

---@class gb.graph
local graph = {}

---@class gb.hook
local hook = {}

---@class gb.numerics
local numerics = {}

---@class gb.policy
local policy = {}

---@class gb.progress
local progress = {}

---@class gb.scope
local scope = {}

---@class gb.text
local text = {}

---@class gibbous
local gb = {}
gb.nn = {}
gb.nn.functional = {}
gb.nn.init = {}
gb.nn.utils = {}
gb.optim = {}
gb.optim.lr = {}
gb.amp = {}
gb.data = {}
gb.io = {}
gb.cuda = {}
gb.random = {}
gb.test = {}

--- 1 with probability x, else 0, per element, in x's dtype.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.bernoulli(x) end

--- 1 with probability x, else 0, per element, in x's dtype.
---@return gb.Tensor y
function tensor:bernoulli() end

--- Draw `samples` indices (from 0) per row of weights x [n] or [rows, n], as int64.
---@param x gb.Tensor
---@param samples integer
---@param options? { replacement?: boolean }
---@return gb.Tensor y
function gb.multinomial(x, samples, options) end

--- Draw `samples` indices (from 0) per row of weights x [n] or [rows, n], as int64.
---@param samples integer
---@param options? { replacement?: boolean }
---@return gb.Tensor y
function tensor:multinomial(samples, options) end

--- A copy with memory of its own, in the same dense layout.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.clone(x) end

--- A copy with memory of its own, in the same dense layout.
---@return gb.Tensor y
function tensor:clone() end

--- A row-major copy; x itself when it is row-major already.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.contiguous(x) end

--- A row-major copy; x itself when it is row-major already.
---@return gb.Tensor y
function tensor:contiguous() end

--- x + y with broadcasting.
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.add(x, y) end

--- x + y with broadcasting.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:add(y) end

--- x + y with broadcasting.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:add_(y) end

--- x - y with broadcasting.
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.sub(x, y) end

--- x - y with broadcasting.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:sub(y) end

--- x - y with broadcasting.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:sub_(y) end

--- x * y with broadcasting.
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.mul(x, y) end

--- x * y with broadcasting.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:mul(y) end

--- x * y with broadcasting.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:mul_(y) end

--- x / y with broadcasting; integers give float32.
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.div(x, y) end

--- x / y with broadcasting; integers give float32.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:div(y) end

--- x / y with broadcasting; integers give float32.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:div_(y) end

--- floor(x / y).
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.floor_divide(x, y) end

--- floor(x / y).
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:floor_divide(y) end

--- floor(x / y).
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:floor_divide_(y) end

--- x - y * floor(x / y): the sign is y's, as in Lua.
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.remainder(x, y) end

--- x - y * floor(x / y): the sign is y's, as in Lua.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:remainder(y) end

--- x - y * floor(x / y): the sign is y's, as in Lua.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:remainder_(y) end

--- x to the power y.
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.pow(x, y) end

--- x to the power y.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:pow(y) end

--- x to the power y.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:pow_(y) end

--- The larger of x and y; NaN if either is. Equal elements share the gradient.
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.maximum(x, y) end

--- The larger of x and y; NaN if either is. Equal elements share the gradient.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:maximum(y) end

--- The smaller of x and y; NaN if either is. Equal elements share the gradient.
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.minimum(x, y) end

--- The smaller of x and y; NaN if either is. Equal elements share the gradient.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:minimum(y) end

--- The angle of the point (x, y), in radians.
---@param y gb.Tensor|number
---@param x gb.Tensor|number
---@return gb.Tensor z
function gb.atan2(y, x) end

--- The angle of the point (x, y), in radians.
---@param x gb.Tensor|number
---@return gb.Tensor z
function tensor:atan2(x) end

--- The angle of the point (x, y), in radians.
---@param x gb.Tensor|number
---@return gb.Tensor z
function tensor:atan2_(x) end

--- The negative of x.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.neg(x) end

--- The negative of x.
---@return gb.Tensor y
function tensor:neg() end

--- The negative of x.
---@return gb.Tensor y
function tensor:neg_() end

--- The magnitude of x; its gradient at 0 is 0.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.abs(x) end

--- The magnitude of x; its gradient at 0 is 0.
---@return gb.Tensor y
function tensor:abs() end

--- The magnitude of x; its gradient at 0 is 0.
---@return gb.Tensor y
function tensor:abs_() end

--- -1, 0 or 1; its gradient is 0.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.sign(x) end

--- -1, 0 or 1; its gradient is 0.
---@return gb.Tensor y
function tensor:sign() end

--- -1, 0 or 1; its gradient is 0.
---@return gb.Tensor y
function tensor:sign_() end

--- e to the power x.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.exp(x) end

--- e to the power x.
---@return gb.Tensor y
function tensor:exp() end

--- e to the power x.
---@return gb.Tensor y
function tensor:exp_() end

--- exp(x) - 1, exact near 0.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.expm1(x) end

--- exp(x) - 1, exact near 0.
---@return gb.Tensor y
function tensor:expm1() end

--- exp(x) - 1, exact near 0.
---@return gb.Tensor y
function tensor:expm1_() end

--- The natural logarithm.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.log(x) end

--- The natural logarithm.
---@return gb.Tensor y
function tensor:log() end

--- The natural logarithm.
---@return gb.Tensor y
function tensor:log_() end

--- The logarithm to base 2.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.log2(x) end

--- The logarithm to base 2.
---@return gb.Tensor y
function tensor:log2() end

--- The logarithm to base 2.
---@return gb.Tensor y
function tensor:log2_() end

--- The logarithm to base 10.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.log10(x) end

--- The logarithm to base 10.
---@return gb.Tensor y
function tensor:log10() end

--- The logarithm to base 10.
---@return gb.Tensor y
function tensor:log10_() end

--- log(1 + x), exact near 0.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.log1p(x) end

--- log(1 + x), exact near 0.
---@return gb.Tensor y
function tensor:log1p() end

--- log(1 + x), exact near 0.
---@return gb.Tensor y
function tensor:log1p_() end

--- The square root.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.sqrt(x) end

--- The square root.
---@return gb.Tensor y
function tensor:sqrt() end

--- The square root.
---@return gb.Tensor y
function tensor:sqrt_() end

--- 1 / sqrt(x).
---@param x gb.Tensor
---@return gb.Tensor y
function gb.rsqrt(x) end

--- 1 / sqrt(x).
---@return gb.Tensor y
function tensor:rsqrt() end

--- 1 / sqrt(x).
---@return gb.Tensor y
function tensor:rsqrt_() end

--- x * x.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.square(x) end

--- x * x.
---@return gb.Tensor y
function tensor:square() end

--- x * x.
---@return gb.Tensor y
function tensor:square_() end

--- 1 / x.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.reciprocal(x) end

--- 1 / x.
---@return gb.Tensor y
function tensor:reciprocal() end

--- 1 / x.
---@return gb.Tensor y
function tensor:reciprocal_() end

--- The sine of x radians.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.sin(x) end

--- The sine of x radians.
---@return gb.Tensor y
function tensor:sin() end

--- The sine of x radians.
---@return gb.Tensor y
function tensor:sin_() end

--- The cosine of x radians.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.cos(x) end

--- The cosine of x radians.
---@return gb.Tensor y
function tensor:cos() end

--- The cosine of x radians.
---@return gb.Tensor y
function tensor:cos_() end

--- The tangent of x radians.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.tan(x) end

--- The tangent of x radians.
---@return gb.Tensor y
function tensor:tan() end

--- The tangent of x radians.
---@return gb.Tensor y
function tensor:tan_() end

--- The hyperbolic tangent.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.tanh(x) end

--- The hyperbolic tangent.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.nn.functional.tanh(x) end

--- The hyperbolic tangent.
---@return gb.Tensor y
function tensor:tanh() end

--- The hyperbolic tangent.
---@return gb.Tensor y
function tensor:tanh_() end

--- The error function.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.erf(x) end

--- The error function.
---@return gb.Tensor y
function tensor:erf() end

--- The error function.
---@return gb.Tensor y
function tensor:erf_() end

--- The largest integer not above x; its gradient is 0.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.floor(x) end

--- The largest integer not above x; its gradient is 0.
---@return gb.Tensor y
function tensor:floor() end

--- The largest integer not above x; its gradient is 0.
---@return gb.Tensor y
function tensor:floor_() end

--- The smallest integer not below x; its gradient is 0.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.ceil(x) end

--- The smallest integer not below x; its gradient is 0.
---@return gb.Tensor y
function tensor:ceil() end

--- The smallest integer not below x; its gradient is 0.
---@return gb.Tensor y
function tensor:ceil_() end

--- The nearest integer, ties to even; its gradient is 0.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.round(x) end

--- The nearest integer, ties to even; its gradient is 0.
---@return gb.Tensor y
function tensor:round() end

--- The nearest integer, ties to even; its gradient is 0.
---@return gb.Tensor y
function tensor:round_() end

--- x without its fraction; its gradient is 0.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.trunc(x) end

--- x without its fraction; its gradient is 0.
---@return gb.Tensor y
function tensor:trunc() end

--- x without its fraction; its gradient is 0.
---@return gb.Tensor y
function tensor:trunc_() end

--- x limited to min .. max; its gradient is 1 inside, 0 at the bounds and beyond. NaN as a bound gives NaN.
---@param x gb.Tensor
---@param min? number
---@param max? number
---@param options? { min?: number, max?: number }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, min?: number, options?: { min?: number, max?: number }): gb.Tensor
---@overload fun(x: gb.Tensor, options?: { min?: number, max?: number }): gb.Tensor
function gb.clamp(x, min, max, options) end

--- x limited to min .. max; its gradient is 1 inside, 0 at the bounds and beyond. NaN as a bound gives NaN.
---@param min? number
---@param max? number
---@param options? { min?: number, max?: number }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, min?: number, options?: { min?: number, max?: number }): gb.Tensor
---@overload fun(self: gb.Tensor, options?: { min?: number, max?: number }): gb.Tensor
function tensor:clamp(min, max, options) end

--- x limited to min .. max; its gradient is 1 inside, 0 at the bounds and beyond. NaN as a bound gives NaN.
---@param min? number
---@param max? number
---@param options? { min?: number, max?: number }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, min?: number, options?: { min?: number, max?: number }): gb.Tensor
---@overload fun(self: gb.Tensor, options?: { min?: number, max?: number }): gb.Tensor
function tensor:clamp_(min, max, options) end

--- x + weight * (y - x).
---@param x gb.Tensor
---@param y gb.Tensor
---@param weight gb.Tensor|number
---@return gb.Tensor z
function gb.lerp(x, y, weight) end

--- x + weight * (y - x).
---@param y gb.Tensor
---@param weight gb.Tensor|number
---@return gb.Tensor z
function tensor:lerp(y, weight) end

--- x + weight * (y - x).
---@param y gb.Tensor
---@param weight gb.Tensor|number
---@return gb.Tensor z
function tensor:lerp_(y, weight) end

--- x + value * y * z.
---@param x gb.Tensor
---@param y gb.Tensor
---@param z gb.Tensor
---@param options? { value?: number }
---@return gb.Tensor w
function gb.addcmul(x, y, z, options) end

--- x + value * y * z.
---@param y gb.Tensor
---@param z gb.Tensor
---@param options? { value?: number }
---@return gb.Tensor w
function tensor:addcmul(y, z, options) end

--- x + value * y * z.
---@param y gb.Tensor
---@param z gb.Tensor
---@param options? { value?: number }
---@return gb.Tensor w
function tensor:addcmul_(y, z, options) end

--- x + value * y / z.
---@param x gb.Tensor
---@param y gb.Tensor
---@param z gb.Tensor
---@param options? { value?: number }
---@return gb.Tensor w
function gb.addcdiv(x, y, z, options) end

--- x + value * y / z.
---@param y gb.Tensor
---@param z gb.Tensor
---@param options? { value?: number }
---@return gb.Tensor w
function tensor:addcdiv(y, z, options) end

--- x + value * y / z.
---@param y gb.Tensor
---@param z gb.Tensor
---@param options? { value?: number }
---@return gb.Tensor w
function tensor:addcdiv_(y, z, options) end

--- x where condition is true, else y.
---@param condition gb.Tensor
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.where(condition, x, y) end

--- x where condition is true, else y.
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:where(x, y) end

--- value where mask is true, else x; in float16 a finite value out of range becomes the largest finite one of its sign.
---@param x gb.Tensor
---@param mask gb.Tensor
---@param value number
---@return gb.Tensor y
function gb.masked_fill(x, mask, value) end

--- value where mask is true, else x; in float16 a finite value out of range becomes the largest finite one of its sign.
---@param mask gb.Tensor
---@param value number
---@return gb.Tensor y
function tensor:masked_fill(mask, value) end

--- value where mask is true, else x; in float16 a finite value out of range becomes the largest finite one of its sign.
---@param mask gb.Tensor
---@param value number
---@return gb.Tensor y
function tensor:masked_fill_(mask, value) end

--- 1 / (1 + exp(-x)).
---@param x gb.Tensor
---@return gb.Tensor y
function gb.sigmoid(x) end

--- 1 / (1 + exp(-x)).
---@param x gb.Tensor
---@return gb.Tensor y
function gb.nn.functional.sigmoid(x) end

--- 1 / (1 + exp(-x)).
---@return gb.Tensor y
function tensor:sigmoid() end

--- 1 / (1 + exp(-x)).
---@return gb.Tensor y
function tensor:sigmoid_() end

--- max(x, 0).
---@param x gb.Tensor
---@return gb.Tensor y
function gb.relu(x) end

--- max(x, 0).
---@param x gb.Tensor
---@return gb.Tensor y
function gb.nn.functional.relu(x) end

--- max(x, 0).
---@return gb.Tensor y
function tensor:relu() end

--- max(x, 0).
---@return gb.Tensor y
function tensor:relu_() end

--- x where positive, else slope * x.
---@param x gb.Tensor
---@param slope? number
---@param options? { slope?: number }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { slope?: number }): gb.Tensor
function gb.leaky_relu(x, slope, options) end

--- x where positive, else slope * x.
---@param x gb.Tensor
---@param slope? number
---@param options? { slope?: number }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { slope?: number }): gb.Tensor
function gb.nn.functional.leaky_relu(x, slope, options) end

--- x where positive, else slope * x.
---@param slope? number
---@param options? { slope?: number }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { slope?: number }): gb.Tensor
function tensor:leaky_relu(slope, options) end

--- x where positive, else slope * x.
---@param slope? number
---@param options? { slope?: number }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { slope?: number }): gb.Tensor
function tensor:leaky_relu_(slope, options) end

--- x where positive, else alpha * (exp(x) - 1).
---@param x gb.Tensor
---@param alpha? number
---@param options? { alpha?: number }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { alpha?: number }): gb.Tensor
function gb.elu(x, alpha, options) end

--- x where positive, else alpha * (exp(x) - 1).
---@param x gb.Tensor
---@param alpha? number
---@param options? { alpha?: number }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { alpha?: number }): gb.Tensor
function gb.nn.functional.elu(x, alpha, options) end

--- x where positive, else alpha * (exp(x) - 1).
---@param alpha? number
---@param options? { alpha?: number }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { alpha?: number }): gb.Tensor
function tensor:elu(alpha, options) end

--- x where positive, else alpha * (exp(x) - 1).
---@param alpha? number
---@param options? { alpha?: number }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { alpha?: number }): gb.Tensor
function tensor:elu_(alpha, options) end

--- x * Phi(x), Phi by erf, or by tanh (Hendrycks, Gimpel 2016) with approximate = 'tanh'.
---@param x gb.Tensor
---@param options? { approximate?: string }
---@return gb.Tensor y
function gb.gelu(x, options) end

--- x * Phi(x), Phi by erf, or by tanh (Hendrycks, Gimpel 2016) with approximate = 'tanh'.
---@param x gb.Tensor
---@param options? { approximate?: string }
---@return gb.Tensor y
function gb.nn.functional.gelu(x, options) end

--- x * Phi(x), Phi by erf, or by tanh (Hendrycks, Gimpel 2016) with approximate = 'tanh'.
---@param options? { approximate?: string }
---@return gb.Tensor y
function tensor:gelu(options) end

--- x * sigmoid(x).
---@param x gb.Tensor
---@return gb.Tensor y
function gb.silu(x) end

--- x * sigmoid(x).
---@param x gb.Tensor
---@return gb.Tensor y
function gb.nn.functional.silu(x) end

--- x * sigmoid(x).
---@return gb.Tensor y
function tensor:silu() end

--- x * sigmoid(x).
---@return gb.Tensor y
function tensor:silu_() end

--- log(1 + exp(beta * x)) / beta; x itself where beta * x exceeds threshold.
---@param x gb.Tensor
---@param options? { beta?: number, threshold?: number }
---@return gb.Tensor y
function gb.softplus(x, options) end

--- log(1 + exp(beta * x)) / beta; x itself where beta * x exceeds threshold.
---@param x gb.Tensor
---@param options? { beta?: number, threshold?: number }
---@return gb.Tensor y
function gb.nn.functional.softplus(x, options) end

--- log(1 + exp(beta * x)) / beta; x itself where beta * x exceeds threshold.
---@param options? { beta?: number, threshold?: number }
---@return gb.Tensor y
function tensor:softplus(options) end

--- x == y, as bool.
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.eq(x, y) end

--- x == y, as bool.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:eq(y) end

--- x ~= y, as bool.
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.ne(x, y) end

--- x ~= y, as bool.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:ne(y) end

--- x < y, as bool.
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.lt(x, y) end

--- x < y, as bool.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:lt(y) end

--- x <= y, as bool.
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.le(x, y) end

--- x <= y, as bool.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:le(y) end

--- x > y, as bool.
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.gt(x, y) end

--- x > y, as bool.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:gt(y) end

--- x >= y, as bool.
---@param x gb.Tensor|number
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.ge(x, y) end

--- x >= y, as bool.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:ge(y) end

--- Both are non-zero, as bool.
---@param x gb.Tensor
---@param y gb.Tensor
---@return gb.Tensor z
function gb.logical_and(x, y) end

--- Both are non-zero, as bool.
---@param y gb.Tensor
---@return gb.Tensor z
function tensor:logical_and(y) end

--- Either is non-zero, as bool.
---@param x gb.Tensor
---@param y gb.Tensor
---@return gb.Tensor z
function gb.logical_or(x, y) end

--- Either is non-zero, as bool.
---@param y gb.Tensor
---@return gb.Tensor z
function tensor:logical_or(y) end

--- Exactly one is non-zero, as bool.
---@param x gb.Tensor
---@param y gb.Tensor
---@return gb.Tensor z
function gb.logical_xor(x, y) end

--- Exactly one is non-zero, as bool.
---@param y gb.Tensor
---@return gb.Tensor z
function tensor:logical_xor(y) end

--- x is zero, as bool.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.logical_not(x) end

--- x is zero, as bool.
---@return gb.Tensor y
function tensor:logical_not() end

--- Bitwise and of integers or bools.
---@param x gb.Tensor
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.bitwise_and(x, y) end

--- Bitwise and of integers or bools.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:bitwise_and(y) end

--- Bitwise or of integers or bools.
---@param x gb.Tensor
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.bitwise_or(x, y) end

--- Bitwise or of integers or bools.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:bitwise_or(y) end

--- Bitwise exclusive or of integers or bools.
---@param x gb.Tensor
---@param y gb.Tensor|number
---@return gb.Tensor z
function gb.bitwise_xor(x, y) end

--- Bitwise exclusive or of integers or bools.
---@param y gb.Tensor|number
---@return gb.Tensor z
function tensor:bitwise_xor(y) end

--- Bitwise complement of integers; the negation of bools.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.bitwise_not(x) end

--- Bitwise complement of integers; the negation of bools.
---@return gb.Tensor y
function tensor:bitwise_not() end

--- x is NaN, as bool.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.isnan(x) end

--- x is NaN, as bool.
---@return gb.Tensor y
function tensor:isnan() end

--- x is infinite, as bool.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.isinf(x) end

--- x is infinite, as bool.
---@return gb.Tensor y
function tensor:isinf() end

--- x is neither infinite nor NaN, as bool.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.isfinite(x) end

--- x is neither infinite nor NaN, as bool.
---@return gb.Tensor y
function tensor:isfinite() end

--- Zero each element with probability p and scale the rest by 1 / (1 - p); x itself when not training.
---@param x gb.Tensor
---@param p? number
---@param training? boolean
---@param options? { p?: number, training?: boolean }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, p?: number, options?: { p?: number, training?: boolean }): gb.Tensor
---@overload fun(x: gb.Tensor, options?: { p?: number, training?: boolean }): gb.Tensor
function gb.dropout(x, p, training, options) end

--- Zero each element with probability p and scale the rest by 1 / (1 - p); x itself when not training.
---@param x gb.Tensor
---@param p? number
---@param training? boolean
---@param options? { p?: number, training?: boolean }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, p?: number, options?: { p?: number, training?: boolean }): gb.Tensor
---@overload fun(x: gb.Tensor, options?: { p?: number, training?: boolean }): gb.Tensor
function gb.nn.functional.dropout(x, p, training, options) end

--- The lower triangle of the last two dimensions, zero above.
---@param x gb.Tensor
---@param diagonal? integer
---@param options? { diagonal?: integer }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { diagonal?: integer }): gb.Tensor
function gb.tril(x, diagonal, options) end

--- The lower triangle of the last two dimensions, zero above.
---@param diagonal? integer
---@param options? { diagonal?: integer }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { diagonal?: integer }): gb.Tensor
function tensor:tril(diagonal, options) end

--- The upper triangle of the last two dimensions, zero below.
---@param x gb.Tensor
---@param diagonal? integer
---@param options? { diagonal?: integer }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { diagonal?: integer }): gb.Tensor
function gb.triu(x, diagonal, options) end

--- The upper triangle of the last two dimensions, zero below.
---@param diagonal? integer
---@param options? { diagonal?: integer }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { diagonal?: integer }): gb.Tensor
function tensor:triu(diagonal, options) end

--- The sum over dim, or over all; integers give int64.
---@param x gb.Tensor
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], keepdim?: boolean, dtype?: gb.DType }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { dim?: integer|integer[], keepdim?: boolean, dtype?: gb.DType }): gb.Tensor
---@overload fun(x: gb.Tensor, ...: integer): gb.Tensor
function gb.sum(x, dim, options) end

--- The sum over dim, or over all; integers give int64.
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], keepdim?: boolean, dtype?: gb.DType }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { dim?: integer|integer[], keepdim?: boolean, dtype?: gb.DType }): gb.Tensor
---@overload fun(self: gb.Tensor, ...: integer): gb.Tensor
function tensor:sum(dim, options) end

--- The mean over dim, or over all.
---@param x gb.Tensor
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], keepdim?: boolean, dtype?: gb.DType }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { dim?: integer|integer[], keepdim?: boolean, dtype?: gb.DType }): gb.Tensor
---@overload fun(x: gb.Tensor, ...: integer): gb.Tensor
function gb.mean(x, dim, options) end

--- The mean over dim, or over all.
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], keepdim?: boolean, dtype?: gb.DType }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { dim?: integer|integer[], keepdim?: boolean, dtype?: gb.DType }): gb.Tensor
---@overload fun(self: gb.Tensor, ...: integer): gb.Tensor
function tensor:mean(dim, options) end

--- The product over dim, or over all; integers give int64.
---@param x gb.Tensor
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], keepdim?: boolean, dtype?: gb.DType }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { dim?: integer|integer[], keepdim?: boolean, dtype?: gb.DType }): gb.Tensor
---@overload fun(x: gb.Tensor, ...: integer): gb.Tensor
function gb.prod(x, dim, options) end

--- The product over dim, or over all; integers give int64.
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], keepdim?: boolean, dtype?: gb.DType }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { dim?: integer|integer[], keepdim?: boolean, dtype?: gb.DType }): gb.Tensor
---@overload fun(self: gb.Tensor, ...: integer): gb.Tensor
function tensor:prod(dim, options) end

--- The variance over dim, divided by n - correction.
---@param x gb.Tensor
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], correction?: number, keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { dim?: integer|integer[], correction?: number, keepdim?: boolean }): gb.Tensor
---@overload fun(x: gb.Tensor, ...: integer): gb.Tensor
function gb.var(x, dim, options) end

--- The variance over dim, divided by n - correction.
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], correction?: number, keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { dim?: integer|integer[], correction?: number, keepdim?: boolean }): gb.Tensor
---@overload fun(self: gb.Tensor, ...: integer): gb.Tensor
function tensor:var(dim, options) end

--- The standard deviation over dim, with n - correction.
---@param x gb.Tensor
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], correction?: number, keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { dim?: integer|integer[], correction?: number, keepdim?: boolean }): gb.Tensor
---@overload fun(x: gb.Tensor, ...: integer): gb.Tensor
function gb.std(x, dim, options) end

--- The standard deviation over dim, with n - correction.
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], correction?: number, keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { dim?: integer|integer[], correction?: number, keepdim?: boolean }): gb.Tensor
---@overload fun(self: gb.Tensor, ...: integer): gb.Tensor
function tensor:std(dim, options) end

--- The largest element over dim; equal elements share the gradient.
---@param x gb.Tensor
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { dim?: integer|integer[], keepdim?: boolean }): gb.Tensor
---@overload fun(x: gb.Tensor, ...: integer): gb.Tensor
function gb.amax(x, dim, options) end

--- The largest element over dim; equal elements share the gradient.
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { dim?: integer|integer[], keepdim?: boolean }): gb.Tensor
---@overload fun(self: gb.Tensor, ...: integer): gb.Tensor
function tensor:amax(dim, options) end

--- The smallest element over dim; equal elements share the gradient.
---@param x gb.Tensor
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { dim?: integer|integer[], keepdim?: boolean }): gb.Tensor
---@overload fun(x: gb.Tensor, ...: integer): gb.Tensor
function gb.amin(x, dim, options) end

--- The smallest element over dim; equal elements share the gradient.
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { dim?: integer|integer[], keepdim?: boolean }): gb.Tensor
---@overload fun(self: gb.Tensor, ...: integer): gb.Tensor
function tensor:amin(dim, options) end

--- The largest element; with dim also its index (from 0) along it.
---@param x gb.Tensor
---@param dim? integer
---@param options? { dim?: integer, keepdim?: boolean }
---@return gb.Tensor values
---@return gb.Tensor indices
---@overload fun(x: gb.Tensor, options?: { dim?: integer, keepdim?: boolean }): gb.Tensor, gb.Tensor
function gb.max(x, dim, options) end

--- The largest element; with dim also its index (from 0) along it.
---@param dim? integer
---@param options? { dim?: integer, keepdim?: boolean }
---@return gb.Tensor values
---@return gb.Tensor indices
---@overload fun(self: gb.Tensor, options?: { dim?: integer, keepdim?: boolean }): gb.Tensor, gb.Tensor
function tensor:max(dim, options) end

--- The smallest element; with dim also its index (from 0) along it.
---@param x gb.Tensor
---@param dim? integer
---@param options? { dim?: integer, keepdim?: boolean }
---@return gb.Tensor values
---@return gb.Tensor indices
---@overload fun(x: gb.Tensor, options?: { dim?: integer, keepdim?: boolean }): gb.Tensor, gb.Tensor
function gb.min(x, dim, options) end

--- The smallest element; with dim also its index (from 0) along it.
---@param dim? integer
---@param options? { dim?: integer, keepdim?: boolean }
---@return gb.Tensor values
---@return gb.Tensor indices
---@overload fun(self: gb.Tensor, options?: { dim?: integer, keepdim?: boolean }): gb.Tensor, gb.Tensor
function tensor:min(dim, options) end

--- The index (from 0, int64) of the first largest element over dim, or in x flattened.
---@param x gb.Tensor
---@param dim? integer
---@param options? { dim?: integer, keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { dim?: integer, keepdim?: boolean }): gb.Tensor
function gb.argmax(x, dim, options) end

--- The index (from 0, int64) of the first largest element over dim, or in x flattened.
---@param dim? integer
---@param options? { dim?: integer, keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { dim?: integer, keepdim?: boolean }): gb.Tensor
function tensor:argmax(dim, options) end

--- The index (from 0, int64) of the first smallest element over dim, or in x flattened.
---@param x gb.Tensor
---@param dim? integer
---@param options? { dim?: integer, keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { dim?: integer, keepdim?: boolean }): gb.Tensor
function gb.argmin(x, dim, options) end

--- The index (from 0, int64) of the first smallest element over dim, or in x flattened.
---@param dim? integer
---@param options? { dim?: integer, keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { dim?: integer, keepdim?: boolean }): gb.Tensor
function tensor:argmin(dim, options) end

--- The p-norm over dim, or over all.
---@param x gb.Tensor
---@param p? number
---@param dim? integer|integer[]
---@param options? { p?: number, dim?: integer|integer[], keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, p?: number, options?: { p?: number, dim?: integer|integer[], keepdim?: boolean }): gb.Tensor
---@overload fun(x: gb.Tensor, options?: { p?: number, dim?: integer|integer[], keepdim?: boolean }): gb.Tensor
---@overload fun(x: gb.Tensor, p?: number, ...: integer): gb.Tensor
function gb.norm(x, p, dim, options) end

--- The p-norm over dim, or over all.
---@param p? number
---@param dim? integer|integer[]
---@param options? { p?: number, dim?: integer|integer[], keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, p?: number, options?: { p?: number, dim?: integer|integer[], keepdim?: boolean }): gb.Tensor
---@overload fun(self: gb.Tensor, options?: { p?: number, dim?: integer|integer[], keepdim?: boolean }): gb.Tensor
---@overload fun(self: gb.Tensor, p?: number, ...: integer): gb.Tensor
function tensor:norm(p, dim, options) end

--- log(sum(exp(x))) over dim, without overflow.
---@param x gb.Tensor
---@param dim integer|integer[]
---@param options? { keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, ...: integer): gb.Tensor
function gb.logsumexp(x, dim, options) end

--- log(sum(exp(x))) over dim, without overflow.
---@param dim integer|integer[]
---@param options? { keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, ...: integer): gb.Tensor
function tensor:logsumexp(dim, options) end

--- Every element is non-zero, as bool.
---@param x gb.Tensor
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { dim?: integer|integer[], keepdim?: boolean }): gb.Tensor
---@overload fun(x: gb.Tensor, ...: integer): gb.Tensor
function gb.all(x, dim, options) end

--- Every element is non-zero, as bool.
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { dim?: integer|integer[], keepdim?: boolean }): gb.Tensor
---@overload fun(self: gb.Tensor, ...: integer): gb.Tensor
function tensor:all(dim, options) end

--- Some element is non-zero, as bool.
---@param x gb.Tensor
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { dim?: integer|integer[], keepdim?: boolean }): gb.Tensor
---@overload fun(x: gb.Tensor, ...: integer): gb.Tensor
function gb.any(x, dim, options) end

--- Some element is non-zero, as bool.
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[], keepdim?: boolean }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { dim?: integer|integer[], keepdim?: boolean }): gb.Tensor
---@overload fun(self: gb.Tensor, ...: integer): gb.Tensor
function tensor:any(dim, options) end

--- Running sums along dim; integers give int64.
---@param x gb.Tensor
---@param dim integer
---@param options? { dtype?: gb.DType }
---@return gb.Tensor y
function gb.cumsum(x, dim, options) end

--- Running sums along dim; integers give int64.
---@param dim integer
---@param options? { dtype?: gb.DType }
---@return gb.Tensor y
function tensor:cumsum(dim, options) end

--- exp(x) / sum(exp(x)) along dim.
---@param x gb.Tensor
---@param dim integer
---@param options? { dtype?: gb.DType }
---@return gb.Tensor y
function gb.softmax(x, dim, options) end

--- exp(x) / sum(exp(x)) along dim.
---@param x gb.Tensor
---@param dim integer
---@param options? { dtype?: gb.DType }
---@return gb.Tensor y
function gb.nn.functional.softmax(x, dim, options) end

--- exp(x) / sum(exp(x)) along dim.
---@param dim integer
---@param options? { dtype?: gb.DType }
---@return gb.Tensor y
function tensor:softmax(dim, options) end

--- x - log(sum(exp(x))) along dim.
---@param x gb.Tensor
---@param dim integer
---@param options? { dtype?: gb.DType }
---@return gb.Tensor y
function gb.log_softmax(x, dim, options) end

--- x - log(sum(exp(x))) along dim.
---@param x gb.Tensor
---@param dim integer
---@param options? { dtype?: gb.DType }
---@return gb.Tensor y
function gb.nn.functional.log_softmax(x, dim, options) end

--- x - log(sum(exp(x))) along dim.
---@param dim integer
---@param options? { dtype?: gb.DType }
---@return gb.Tensor y
function tensor:log_softmax(dim, options) end

--- The matrix product over the last two dims, batches broadcast; vectors as in PyTorch. Float32 accumulation.
---@param x gb.Tensor
---@param y gb.Tensor
---@param options? { dtype?: gb.DType }
---@return gb.Tensor z
function gb.matmul(x, y, options) end

--- The matrix product over the last two dims, batches broadcast; vectors as in PyTorch. Float32 accumulation.
---@param y gb.Tensor
---@param options? { dtype?: gb.DType }
---@return gb.Tensor z
function tensor:matmul(y, options) end

--- The product of two matrices.
---@param x gb.Tensor
---@param y gb.Tensor
---@return gb.Tensor z
function gb.mm(x, y) end

--- The product of two matrices.
---@param y gb.Tensor
---@return gb.Tensor z
function tensor:mm(y) end

--- The products of two batches of matrices, [b, n, k] by [b, k, m].
---@param x gb.Tensor
---@param y gb.Tensor
---@return gb.Tensor z
function gb.bmm(x, y) end

--- The products of two batches of matrices, [b, n, k] by [b, k, m].
---@param y gb.Tensor
---@return gb.Tensor z
function tensor:bmm(y) end

--- The product of a matrix and a vector.
---@param x gb.Tensor
---@param y gb.Tensor
---@return gb.Tensor z
function gb.mv(x, y) end

--- The product of a matrix and a vector.
---@param y gb.Tensor
---@return gb.Tensor z
function tensor:mv(y) end

--- beta * x + alpha * (a @ b), x broadcast to the product's shape.
---@param x gb.Tensor
---@param a gb.Tensor
---@param b gb.Tensor
---@param options? { beta?: number, alpha?: number }
---@return gb.Tensor z
function gb.addmm(x, a, b, options) end

--- beta * x + alpha * (a @ b), x broadcast to the product's shape.
---@param a gb.Tensor
---@param b gb.Tensor
---@param options? { beta?: number, alpha?: number }
---@return gb.Tensor z
function tensor:addmm(a, b, options) end

--- addmm for batches of matrices.
---@param x gb.Tensor
---@param a gb.Tensor
---@param b gb.Tensor
---@param options? { beta?: number, alpha?: number }
---@return gb.Tensor z
function gb.baddbmm(x, a, b, options) end

--- addmm for batches of matrices.
---@param a gb.Tensor
---@param b gb.Tensor
---@param options? { beta?: number, alpha?: number }
---@return gb.Tensor z
function tensor:baddbmm(a, b, options) end

--- The inner product of two vectors.
---@param x gb.Tensor
---@param y gb.Tensor
---@return gb.Tensor z
function gb.dot(x, y) end

--- The inner product of two vectors.
---@param y gb.Tensor
---@return gb.Tensor z
function tensor:dot(y) end

--- The outer product of two vectors.
---@param x gb.Tensor
---@param y gb.Tensor
---@return gb.Tensor z
function gb.outer(x, y) end

--- The outer product of two vectors.
---@param y gb.Tensor
---@return gb.Tensor z
function tensor:outer(y) end

--- x @ weight^T + bias over the last dim; weight [out, in]. activation none, relu, gelu, gelu_tanh, silu, tanh or sigmoid is applied before the
--- one rounding.
---@param x gb.Tensor
---@param weight gb.Tensor
---@param bias? gb.Tensor
---@param options? { bias?: gb.Tensor, activation?: string }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, weight: gb.Tensor, options?: { bias?: gb.Tensor, activation?: string }): gb.Tensor
function gb.nn.functional.linear(x, weight, bias, options) end

--- linear, activation, linear in one: weight1 [hidden, in], weight2 [out, hidden].
---@param x gb.Tensor
---@param weight1 gb.Tensor
---@param bias1? gb.Tensor
---@param weight2 gb.Tensor
---@param bias2? gb.Tensor
---@param options? { bias1?: gb.Tensor, bias2?: gb.Tensor, activation?: string }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, weight1: gb.Tensor, bias1?: gb.Tensor, weight2: gb.Tensor, options?: { bias1?: gb.Tensor, bias2?: gb.Tensor, activation?: string }): gb.Tensor
function gb.nn.functional.mlp(x, weight1, bias1, weight2, bias2, options) end

--- 2-D convolution of x [n, c, h, w] with weight [out, c / groups, kh, kw]; the result is channels-last in memory. activation none or relu.
---@param x gb.Tensor
---@param weight gb.Tensor
---@param bias? gb.Tensor
---@param options? { bias?: gb.Tensor, stride?: integer|integer[], padding?: integer|integer[], dilation?: integer|integer[], groups?: integer, activation?: string }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, weight: gb.Tensor, options?: { bias?: gb.Tensor, stride?: integer|integer[], padding?: integer|integer[], dilation?: integer|integer[], groups?: integer, activation?: string }): gb.Tensor
function gb.nn.functional.conv2d(x, weight, bias, options) end

--- The largest element of each window of x [n, c, h, w]; stride is kernel_size unless given.
---@param x gb.Tensor
---@param kernel_size integer|integer[]
---@param options? { stride?: integer|integer[], padding?: integer|integer[] }
---@return gb.Tensor y
function gb.nn.functional.max_pool2d(x, kernel_size, options) end

--- The mean of each window of x [n, c, h, w], padding counted as zeros.
---@param x gb.Tensor
---@param kernel_size integer|integer[]
---@param options? { stride?: integer|integer[], padding?: integer|integer[] }
---@return gb.Tensor y
function gb.nn.functional.avg_pool2d(x, kernel_size, options) end

--- Means over windows chosen so that the result is size[1] x size[2].
---@param x gb.Tensor
---@param size integer|integer[]
---@return gb.Tensor y
function gb.nn.functional.adaptive_avg_pool2d(x, size) end

--- Normalise the last dims of x, then scale and shift: (x - mean) / sqrt(var + eps) * weight + bias. out: the dtype of y under autocast,
--- float32 or (autocast) the scope's.
---@param x gb.Tensor
---@param shape integer|integer[]
---@param weight? gb.Tensor
---@param bias? gb.Tensor
---@param options? { weight?: gb.Tensor, bias?: gb.Tensor, eps?: number, out?: string }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, shape: integer|integer[], weight?: gb.Tensor, options?: { weight?: gb.Tensor, bias?: gb.Tensor, eps?: number, out?: string }): gb.Tensor
---@overload fun(x: gb.Tensor, shape: integer|integer[], options?: { weight?: gb.Tensor, bias?: gb.Tensor, eps?: number, out?: string }): gb.Tensor
function gb.nn.functional.layer_norm(x, shape, weight, bias, options) end

--- Normalise the last dims of x, then scale and shift: (x - mean) / sqrt(var + eps) * weight + bias. out: the dtype of y under autocast,
--- float32 or (autocast) the scope's.
---@param shape integer|integer[]
---@param weight? gb.Tensor
---@param bias? gb.Tensor
---@param options? { weight?: gb.Tensor, bias?: gb.Tensor, eps?: number, out?: string }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, shape: integer|integer[], weight?: gb.Tensor, options?: { weight?: gb.Tensor, bias?: gb.Tensor, eps?: number, out?: string }): gb.Tensor
---@overload fun(self: gb.Tensor, shape: integer|integer[], options?: { weight?: gb.Tensor, bias?: gb.Tensor, eps?: number, out?: string }): gb.Tensor
function tensor:layer_norm(shape, weight, bias, options) end

--- Divide the last dims of x by their root mean square: x / sqrt(mean(x^2) + eps) * weight. out: as in layer_norm.
---@param x gb.Tensor
---@param shape integer|integer[]
---@param weight? gb.Tensor
---@param options? { weight?: gb.Tensor, eps?: number, out?: string }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, shape: integer|integer[], options?: { weight?: gb.Tensor, eps?: number, out?: string }): gb.Tensor
function gb.nn.functional.rms_norm(x, shape, weight, options) end

--- Divide the last dims of x by their root mean square: x / sqrt(mean(x^2) + eps) * weight. out: as in layer_norm.
---@param shape integer|integer[]
---@param weight? gb.Tensor
---@param options? { weight?: gb.Tensor, eps?: number, out?: string }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, shape: integer|integer[], options?: { weight?: gb.Tensor, eps?: number, out?: string }): gb.Tensor
function tensor:rms_norm(shape, weight, options) end

--- sum = x + residual and y = layer_norm(sum), in one pass over memory. out: as in layer_norm, for y.
---@param x gb.Tensor
---@param residual gb.Tensor
---@param shape integer|integer[]
---@param weight? gb.Tensor
---@param bias? gb.Tensor
---@param options? { weight?: gb.Tensor, bias?: gb.Tensor, eps?: number, out?: string }
---@return gb.Tensor y
---@return gb.Tensor sum
---@overload fun(x: gb.Tensor, residual: gb.Tensor, shape: integer|integer[], weight?: gb.Tensor, options?: { weight?: gb.Tensor, bias?: gb.Tensor, eps?: number, out?: string }): gb.Tensor, gb.Tensor
---@overload fun(x: gb.Tensor, residual: gb.Tensor, shape: integer|integer[], options?: { weight?: gb.Tensor, bias?: gb.Tensor, eps?: number, out?: string }): gb.Tensor, gb.Tensor
function gb.nn.functional.add_layer_norm(x, residual, shape, weight, bias, options) end

--- Normalise each channel (dim 2) of x over the batch, or by the running statistics when not training; they are updated only if the batch's are
--- finite.
---@param x gb.Tensor
---@param running_mean? gb.Tensor
---@param running_var? gb.Tensor
---@param weight? gb.Tensor
---@param bias? gb.Tensor
---@param options? { running_mean?: gb.Tensor, running_var?: gb.Tensor, weight?: gb.Tensor, bias?: gb.Tensor, training?: boolean, momentum?: number, eps?: number }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, running_mean?: gb.Tensor, running_var?: gb.Tensor, weight?: gb.Tensor, options?: { running_mean?: gb.Tensor, running_var?: gb.Tensor, weight?: gb.Tensor, bias?: gb.Tensor, training?: boolean, momentum?: number, eps?: number }): gb.Tensor
---@overload fun(x: gb.Tensor, running_mean?: gb.Tensor, running_var?: gb.Tensor, options?: { running_mean?: gb.Tensor, running_var?: gb.Tensor, weight?: gb.Tensor, bias?: gb.Tensor, training?: boolean, momentum?: number, eps?: number }): gb.Tensor
---@overload fun(x: gb.Tensor, running_mean?: gb.Tensor, options?: { running_mean?: gb.Tensor, running_var?: gb.Tensor, weight?: gb.Tensor, bias?: gb.Tensor, training?: boolean, momentum?: number, eps?: number }): gb.Tensor
---@overload fun(x: gb.Tensor, options?: { running_mean?: gb.Tensor, running_var?: gb.Tensor, weight?: gb.Tensor, bias?: gb.Tensor, training?: boolean, momentum?: number, eps?: number }): gb.Tensor
function gb.nn.functional.batch_norm(x, running_mean, running_var, weight, bias, options) end

--- -log softmax(x)[target]: x [n, classes] or [n, classes, ...], target int64 class indices from 0, or probabilities of x's shape. reduction
--- none, mean or sum.
---@param x gb.Tensor
---@param target gb.Tensor
---@param weight? gb.Tensor
---@param options? { weight?: gb.Tensor, ignore_index?: integer, reduction?: string, label_smoothing?: number }
---@return gb.Tensor loss
---@overload fun(x: gb.Tensor, target: gb.Tensor, options?: { weight?: gb.Tensor, ignore_index?: integer, reduction?: string, label_smoothing?: number }): gb.Tensor
function gb.nn.functional.cross_entropy(x, target, weight, options) end

--- cross_entropy(linear(x, weight, bias), target) in float32, in chunks of rows: the logits are never stored whole. x [n, features], target
--- [n]. reduction mean or sum.
---@param x gb.Tensor
---@param weight gb.Tensor
---@param target gb.Tensor
---@param bias? gb.Tensor
---@param options? { bias?: gb.Tensor, ignore_index?: integer, reduction?: string }
---@return gb.Tensor loss
---@overload fun(x: gb.Tensor, weight: gb.Tensor, target: gb.Tensor, options?: { bias?: gb.Tensor, ignore_index?: integer, reduction?: string }): gb.Tensor
function gb.nn.functional.linear_cross_entropy(x, weight, target, bias, options) end

--- -x[target] of log-probabilities x [n, classes] or [n, classes, ...].
---@param x gb.Tensor
---@param target gb.Tensor
---@param weight? gb.Tensor
---@param options? { weight?: gb.Tensor, ignore_index?: integer, reduction?: string }
---@return gb.Tensor loss
---@overload fun(x: gb.Tensor, target: gb.Tensor, options?: { weight?: gb.Tensor, ignore_index?: integer, reduction?: string }): gb.Tensor
function gb.nn.functional.nll_loss(x, target, weight, options) end

--- (x - target)^2.
---@param x gb.Tensor
---@param target gb.Tensor
---@param options? { reduction?: string }
---@return gb.Tensor loss
function gb.nn.functional.mse_loss(x, target, options) end

--- |x - target|.
---@param x gb.Tensor
---@param target gb.Tensor
---@param options? { reduction?: string }
---@return gb.Tensor loss
function gb.nn.functional.l1_loss(x, target, options) end

--- Squared below beta, absolute above: 0.5 d^2 / beta or |d| - 0.5 beta.
---@param x gb.Tensor
---@param target gb.Tensor
---@param options? { reduction?: string, beta?: number }
---@return gb.Tensor loss
function gb.nn.functional.smooth_l1_loss(x, target, options) end

--- -(y log sigmoid(x) + (1 - y) log(1 - sigmoid(x))), without overflow.
---@param x gb.Tensor
---@param target gb.Tensor
---@param weight? gb.Tensor
---@param options? { weight?: gb.Tensor, pos_weight?: number, reduction?: string }
---@return gb.Tensor loss
---@overload fun(x: gb.Tensor, target: gb.Tensor, options?: { weight?: gb.Tensor, pos_weight?: number, reduction?: string }): gb.Tensor
function gb.nn.functional.binary_cross_entropy_with_logits(x, target, weight, options) end

--- -(y log x + (1 - y) log(1 - x)) of probabilities; logarithms are at least -100.
---@param x gb.Tensor
---@param target gb.Tensor
---@param weight? gb.Tensor
---@param options? { weight?: gb.Tensor, reduction?: string }
---@return gb.Tensor loss
---@overload fun(x: gb.Tensor, target: gb.Tensor, options?: { weight?: gb.Tensor, reduction?: string }): gb.Tensor
function gb.nn.functional.binary_cross_entropy(x, target, weight, options) end

--- target * (log target - x) for log-probabilities x; reduction also batchmean.
---@param x gb.Tensor
---@param target gb.Tensor
---@param options? { reduction?: string, log_target?: boolean }
---@return gb.Tensor loss
function gb.nn.functional.kl_div(x, target, options) end

--- softmax(query key^T * scale + mask) value over [batch, heads, time, head_dim], tile by tile: no time x time matrix is stored. scale is 1 /
--- sqrt(head_dim) unless given; mask bool (true: attend) or float (added).
---@param query gb.Tensor
---@param key gb.Tensor
---@param value gb.Tensor
---@param mask? gb.Tensor
---@param options? { mask?: gb.Tensor, is_causal?: boolean, scale?: number, dropout_p?: number }
---@return gb.Tensor y
---@overload fun(query: gb.Tensor, key: gb.Tensor, value: gb.Tensor, options?: { mask?: gb.Tensor, is_causal?: boolean, scale?: number, dropout_p?: number }): gb.Tensor
function gb.nn.functional.scaled_dot_product_attention(query, key, value, mask, options) end

--- Rows of weight [rows, dim] picked by integers from 0; the row padding_idx gets no gradient.
---@param index gb.Tensor
---@param weight gb.Tensor
---@param options? { padding_idx?: integer }
---@return gb.Tensor y
function gb.nn.functional.embedding(index, weight, options) end

--- x picked along dim by integers from 0, element by element.
---@param x gb.Tensor
---@param dim integer
---@param index gb.Tensor
---@return gb.Tensor y
function gb.gather(x, dim, index) end

--- x picked along dim by integers from 0, element by element.
---@param dim integer
---@param index gb.Tensor
---@return gb.Tensor y
function tensor:gather(dim, index) end

--- x with source added at index along dim, in the order of the index.
---@param x gb.Tensor
---@param dim integer
---@param index gb.Tensor
---@param source gb.Tensor
---@return gb.Tensor y
function gb.scatter_add(x, dim, index, source) end

--- x with source added at index along dim, in the order of the index.
---@param dim integer
---@param index gb.Tensor
---@param source gb.Tensor
---@return gb.Tensor y
function tensor:scatter_add(dim, index, source) end

--- x with source added at index along dim, in the order of the index.
---@param dim integer
---@param index gb.Tensor
---@param source gb.Tensor
---@return gb.Tensor y
function tensor:scatter_add_(dim, index, source) end

--- Slices of x along dim, picked by a vector of integers from 0.
---@param x gb.Tensor
---@param dim integer
---@param index gb.Tensor
---@return gb.Tensor y
function gb.index_select(x, dim, index) end

--- Slices of x along dim, picked by a vector of integers from 0.
---@param dim integer
---@param index gb.Tensor
---@return gb.Tensor y
function tensor:index_select(dim, index) end

--- x with slices of source added at index along dim.
---@param x gb.Tensor
---@param dim integer
---@param index gb.Tensor
---@param source gb.Tensor
---@return gb.Tensor y
function gb.index_add(x, dim, index, source) end

--- x with slices of source added at index along dim.
---@param dim integer
---@param index gb.Tensor
---@param source gb.Tensor
---@return gb.Tensor y
function tensor:index_add(dim, index, source) end

--- x with slices of source added at index along dim.
---@param dim integer
---@param index gb.Tensor
---@param source gb.Tensor
---@return gb.Tensor y
function tensor:index_add_(dim, index, source) end

--- x with x[index] = source along the first dimension; the last of equal indices wins.
---@param x gb.Tensor
---@param index gb.Tensor
---@param source gb.Tensor|number
---@return gb.Tensor y
function gb.index_put(x, index, source) end

--- x with x[index] = source along the first dimension; the last of equal indices wins.
---@param index gb.Tensor
---@param source gb.Tensor|number
---@return gb.Tensor y
function tensor:index_put(index, source) end

--- x with x[index] = source along the first dimension; the last of equal indices wins.
---@param index gb.Tensor
---@param source gb.Tensor|number
---@return gb.Tensor y
function tensor:index_put_(index, source) end

--- The elements of x where mask is true, as a vector.
---@param x gb.Tensor
---@param mask gb.Tensor
---@return gb.Tensor y
function gb.masked_select(x, mask) end

--- The elements of x where mask is true, as a vector.
---@param mask gb.Tensor
---@return gb.Tensor y
function tensor:masked_select(mask) end

--- x with its elements where mask is true replaced, in order, by those of source.
---@param x gb.Tensor
---@param mask gb.Tensor
---@param source gb.Tensor
---@return gb.Tensor y
function gb.masked_scatter(x, mask, source) end

--- x with its elements where mask is true replaced, in order, by those of source.
---@param mask gb.Tensor
---@param source gb.Tensor
---@return gb.Tensor y
function tensor:masked_scatter(mask, source) end

--- x with its elements where mask is true replaced, in order, by those of source.
---@param mask gb.Tensor
---@param source gb.Tensor
---@return gb.Tensor y
function tensor:masked_scatter_(mask, source) end

--- The indices (from 0, int64) of non-zero elements, [count, ndim].
---@param x gb.Tensor
---@return gb.Tensor y
function gb.nonzero(x) end

--- The indices (from 0, int64) of non-zero elements, [count, ndim].
---@return gb.Tensor y
function tensor:nonzero() end

--- int64 rows with a 1 at the index, [..., classes].
---@param x gb.Tensor
---@param classes integer
---@return gb.Tensor y
function gb.one_hot(x, classes) end

--- int64 rows with a 1 at the index, [..., classes].
---@param x gb.Tensor
---@param classes integer
---@return gb.Tensor y
function gb.nn.functional.one_hot(x, classes) end

--- int64 rows with a 1 at the index, [..., classes].
---@param classes integer
---@return gb.Tensor y
function tensor:one_hot(classes) end

--- The k largest (or smallest) elements along dim, sorted, and their indices (from 0).
---@param x gb.Tensor
---@param k integer
---@param dim? integer
---@param options? { dim?: integer, largest?: boolean }
---@return gb.Tensor values
---@return gb.Tensor indices
---@overload fun(x: gb.Tensor, k: integer, options?: { dim?: integer, largest?: boolean }): gb.Tensor, gb.Tensor
function gb.topk(x, k, dim, options) end

--- The k largest (or smallest) elements along dim, sorted, and their indices (from 0).
---@param k integer
---@param dim? integer
---@param options? { dim?: integer, largest?: boolean }
---@return gb.Tensor values
---@return gb.Tensor indices
---@overload fun(self: gb.Tensor, k: integer, options?: { dim?: integer, largest?: boolean }): gb.Tensor, gb.Tensor
function tensor:topk(k, dim, options) end

--- Sort the elements along dim (stable; NaN is the largest); also their indices (from 0).
---@param x gb.Tensor
---@param dim? integer
---@param options? { dim?: integer, descending?: boolean }
---@return gb.Tensor values
---@return gb.Tensor indices
---@overload fun(x: gb.Tensor, options?: { dim?: integer, descending?: boolean }): gb.Tensor, gb.Tensor
function gb.sort(x, dim, options) end

--- Sort the elements along dim (stable; NaN is the largest); also their indices (from 0).
---@param dim? integer
---@param options? { dim?: integer, descending?: boolean }
---@return gb.Tensor values
---@return gb.Tensor indices
---@overload fun(self: gb.Tensor, options?: { dim?: integer, descending?: boolean }): gb.Tensor, gb.Tensor
function tensor:sort(dim, options) end

--- Join tensors along dim; dtypes are promoted.
---@param xs gb.Tensor[]
---@param dim? integer
---@param options? { dim?: integer }
---@return gb.Tensor y
---@overload fun(xs: gb.Tensor[], options?: { dim?: integer }): gb.Tensor
function gb.cat(xs, dim, options) end

--- Join tensors of one shape along a new dim.
---@param xs gb.Tensor[]
---@param dim? integer
---@param options? { dim?: integer }
---@return gb.Tensor y
---@overload fun(xs: gb.Tensor[], options?: { dim?: integer }): gb.Tensor
function gb.stack(xs, dim, options) end

--- Reverse the order of the elements along dim.
---@param x gb.Tensor
---@param dim integer|integer[]
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, ...: integer): gb.Tensor
function gb.flip(x, dim) end

--- Reverse the order of the elements along dim.
---@param dim integer|integer[]
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, ...: integer): gb.Tensor
function tensor:flip(dim) end

--- Repeat each slice along dim.
---@param x gb.Tensor
---@param repeats integer
---@param dim? integer
---@param options? { dim?: integer }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, repeats: integer, options?: { dim?: integer }): gb.Tensor
function gb.repeat_interleave(x, repeats, dim, options) end

--- Repeat each slice along dim.
---@param repeats integer
---@param dim? integer
---@param options? { dim?: integer }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, repeats: integer, options?: { dim?: integer }): gb.Tensor
function tensor:repeat_interleave(repeats, dim, options) end

--- The same elements in another shape; one size may be -1. An error if that needs a copy.
---@param shape integer|integer[]
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, ...: integer): gb.Tensor
function tensor:view(shape) end

--- The elements in another shape: a view where possible, else a copy.
---@param x gb.Tensor
---@param shape integer|integer[]
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, ...: integer): gb.Tensor
function gb.reshape(x, shape) end

--- The elements in another shape: a view where possible, else a copy.
---@param shape integer|integer[]
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, ...: integer): gb.Tensor
function tensor:reshape(shape) end

--- Merge dimensions first .. last into one.
---@param x gb.Tensor
---@param first? integer
---@param last? integer
---@param options? { first?: integer, last?: integer }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, first?: integer, options?: { first?: integer, last?: integer }): gb.Tensor
---@overload fun(x: gb.Tensor, options?: { first?: integer, last?: integer }): gb.Tensor
function gb.flatten(x, first, last, options) end

--- Merge dimensions first .. last into one.
---@param first? integer
---@param last? integer
---@param options? { first?: integer, last?: integer }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, first?: integer, options?: { first?: integer, last?: integer }): gb.Tensor
---@overload fun(self: gb.Tensor, options?: { first?: integer, last?: integer }): gb.Tensor
function tensor:flatten(first, last, options) end

--- Split one dimension into several; one size may be -1.
---@param x gb.Tensor
---@param dim integer
---@param shape integer|integer[]
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, dim: integer, ...: integer): gb.Tensor
function gb.unflatten(x, dim, shape) end

--- Split one dimension into several; one size may be -1.
---@param dim integer
---@param shape integer|integer[]
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, dim: integer, ...: integer): gb.Tensor
function tensor:unflatten(dim, shape) end

--- Swap two dimensions.
---@param x gb.Tensor
---@param first integer
---@param second integer
---@return gb.Tensor y
function gb.transpose(x, first, second) end

--- Swap two dimensions.
---@param first integer
---@param second integer
---@return gb.Tensor y
function tensor:transpose(first, second) end

--- The dimensions in another order.
---@param x gb.Tensor
---@param dims integer|integer[]
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, ...: integer): gb.Tensor
function gb.permute(x, dims) end

--- The dimensions in another order.
---@param dims integer|integer[]
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, ...: integer): gb.Tensor
function tensor:permute(dims) end

--- Transpose a matrix; a vector stays as it is.
---@param x gb.Tensor
---@return gb.Tensor y
function gb.t(x) end

--- Transpose a matrix; a vector stays as it is.
---@return gb.Tensor y
function tensor:t() end

--- Remove dimensions of size 1: all of them, or those named.
---@param x gb.Tensor
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[] }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, options?: { dim?: integer|integer[] }): gb.Tensor
---@overload fun(x: gb.Tensor, ...: integer): gb.Tensor
function gb.squeeze(x, dim, options) end

--- Remove dimensions of size 1: all of them, or those named.
---@param dim? integer|integer[]
---@param options? { dim?: integer|integer[] }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, options?: { dim?: integer|integer[] }): gb.Tensor
---@overload fun(self: gb.Tensor, ...: integer): gb.Tensor
function tensor:squeeze(dim, options) end

--- Insert a dimension of size 1 at dim, which may be ndim + 1.
---@param x gb.Tensor
---@param dim integer
---@return gb.Tensor y
function gb.unsqueeze(x, dim) end

--- Insert a dimension of size 1 at dim, which may be ndim + 1.
---@param dim integer
---@return gb.Tensor y
function tensor:unsqueeze(dim) end

--- Repeat dimensions of size 1 up to shape, without copying; -1 keeps a size.
---@param x gb.Tensor
---@param shape integer|integer[]
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, ...: integer): gb.Tensor
function gb.expand(x, shape) end

--- Repeat dimensions of size 1 up to shape, without copying; -1 keeps a size.
---@param shape integer|integer[]
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, ...: integer): gb.Tensor
function tensor:expand(shape) end

--- length positions along dim, from start on.
---@param x gb.Tensor
---@param dim integer
---@param start integer
---@param length integer
---@return gb.Tensor y
function gb.narrow(x, dim, start, length) end

--- length positions along dim, from start on.
---@param dim integer
---@param start integer
---@param length integer
---@return gb.Tensor y
function tensor:narrow(dim, start, length) end

--- One position along dim; the dimension is removed.
---@param x gb.Tensor
---@param dim integer
---@param position integer
---@return gb.Tensor y
function gb.select(x, dim, position) end

--- One position along dim; the dimension is removed.
---@param dim integer
---@param position integer
---@return gb.Tensor y
function tensor:select(dim, position) end

--- Positions first .. last along dim, both included, or every step-th of them.
---@param x gb.Tensor
---@param dim integer
---@param first? integer
---@param last? integer
---@param step? integer
---@param options? { first?: integer, last?: integer, step?: integer }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, dim: integer, first?: integer, last?: integer, options?: { first?: integer, last?: integer, step?: integer }): gb.Tensor
---@overload fun(x: gb.Tensor, dim: integer, first?: integer, options?: { first?: integer, last?: integer, step?: integer }): gb.Tensor
---@overload fun(x: gb.Tensor, dim: integer, options?: { first?: integer, last?: integer, step?: integer }): gb.Tensor
function gb.slice(x, dim, first, last, step, options) end

--- Positions first .. last along dim, both included, or every step-th of them.
---@param dim integer
---@param first? integer
---@param last? integer
---@param step? integer
---@param options? { first?: integer, last?: integer, step?: integer }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, dim: integer, first?: integer, last?: integer, options?: { first?: integer, last?: integer, step?: integer }): gb.Tensor
---@overload fun(self: gb.Tensor, dim: integer, first?: integer, options?: { first?: integer, last?: integer, step?: integer }): gb.Tensor
---@overload fun(self: gb.Tensor, dim: integer, options?: { first?: integer, last?: integer, step?: integer }): gb.Tensor
function tensor:slice(dim, first, last, step, options) end

--- The diagonal of two dimensions, as the last dimension.
---@param x gb.Tensor
---@param offset? integer
---@param first? integer
---@param second? integer
---@param options? { offset?: integer, first?: integer, second?: integer }
---@return gb.Tensor y
---@overload fun(x: gb.Tensor, offset?: integer, first?: integer, options?: { offset?: integer, first?: integer, second?: integer }): gb.Tensor
---@overload fun(x: gb.Tensor, offset?: integer, options?: { offset?: integer, first?: integer, second?: integer }): gb.Tensor
---@overload fun(x: gb.Tensor, options?: { offset?: integer, first?: integer, second?: integer }): gb.Tensor
function gb.diagonal(x, offset, first, second, options) end

--- The diagonal of two dimensions, as the last dimension.
---@param offset? integer
---@param first? integer
---@param second? integer
---@param options? { offset?: integer, first?: integer, second?: integer }
---@return gb.Tensor y
---@overload fun(self: gb.Tensor, offset?: integer, first?: integer, options?: { offset?: integer, first?: integer, second?: integer }): gb.Tensor
---@overload fun(self: gb.Tensor, offset?: integer, options?: { offset?: integer, first?: integer, second?: integer }): gb.Tensor
---@overload fun(self: gb.Tensor, options?: { offset?: integer, first?: integer, second?: integer }): gb.Tensor
function tensor:diagonal(offset, first, second, options) end

--- The batches of one epoch from its beginning; the next call begins the next epoch, also where a loop was left by break. With resume the loop
--- goes on where a checkpoint that was loaded, or a loop that was left, stood. device moves each tensor there. There is one place to stand, so
--- one loop at a time.
---@param device? string
---@param options? { resume?: boolean }
---@return function
function DataLoader:iter(device, options) end

--- Go on from where state_dict was asked: the next loop begins there.
--- Errors: a state of another form, a batch that an epoch does not have.
---@param state table
function DataLoader:load_state_dict(state) end

--- Where the loader stands: saved and restored with a checkpoint.
---@return table
function DataLoader:state_dict() end

--- Let go of the scaler now, not when it is collected; using it then is an error.
function GradScaler:close() end

--- What the scale is multiplied by after a skip.
---@return number
function GradScaler:get_backoff_factor() end

--- What the scale is multiplied by after growth_interval finite steps.
---@return number
function GradScaler:get_growth_factor() end

--- How many finite steps in a row let the scale grow.
---@return integer
function GradScaler:get_growth_interval() end

--- The scale; 1 when the scaler is disabled, as PyTorch's.
---@return number
function GradScaler:get_scale() end

--- Does it scale at all?
---@return boolean
function GradScaler:is_enabled() end

--- Go on from a state, ours or one that PyTorch wrote.
--- Errors: a state without the numbers, or of a disabled scaler.
---@param state table
function GradScaler:load_state_dict(state) end

--- The names of the parameters whose gradients were not finite at the last skip, "" when there was none; and from the second skip in a row on
--- what made the first such value: the op, the recipe's line, whether it is finite at half the scale.
---@return string
---@return string
function GradScaler:report() end

--- The loss, or a list of losses, times the scale, in float32; their gradients carry the scale with them.
---@param loss gb.Tensor|gb.Tensor[]
---@return gb.Tensor
function GradScaler:scale(loss) end

--- What the scale is multiplied by after a skip.
--- Errors: a factor that is not between 0 and 1.
---@param factor number
function GradScaler:set_backoff_factor(factor) end

--- What the scale is multiplied by after growth_interval finite steps.
--- Errors: a factor that is not above 1.
---@param factor number
function GradScaler:set_growth_factor(factor) end

--- How many finite steps in a row let the scale grow.
--- Errors: an interval below 1.
---@param interval integer
function GradScaler:set_growth_interval(interval) end

--- PyTorch's keys, and the counters that schedules and hysteresis go on from; empty when disabled.
---@return table
function GradScaler:state_dict() end

--- scale, steps, skipped, skipped_in_a_row, growth_tracker, last_skipped.
---@return table
function GradScaler:stats() end

--- The optimizer's step, unless a gradient is not finite. With clip, the largest norm, all that unscale_, clip_grad_norm_ and step do, bit for
--- bit, the clip within the update itself: grad is unscaled and clipped afterwards; returns the norm before, on a device as a tensor.
--- Errors: max_skips skips in a row, with the report.
---@param optimizer gb.Optimizer
---@param options? { clip?: number, norm_type?: number }
---@return number
function GradScaler:step(optimizer, options) end

--- Divide the gradients by the scale in place, before they are clipped or read, and measure their 2-norm on the way: clip_grad_norm_ over the
--- same gradients, untouched since, needs no pass for it.
--- Errors: twice between two updates.
---@param optimizer gb.Optimizer
function GradScaler:unscale_(optimizer) end

--- After the steps of an iteration: grow the scale, or back off after a skip.
---@param new_scale? number
function GradScaler:update(new_scale) end

--- x + residual and its norm in one pass: returns the norm, then the sum.
---@param x gb.Tensor
---@param residual gb.Tensor
---@return gb.Tensor
---@return gb.Tensor
function LayerNorm:add(x, residual) end

--- Run fn on every module inside, then on this one.
---@param fn function
---@return gb.Module
function Module:apply(fn) end

--- Floating parameters and buffers in bfloat16.
---@return gb.Module
function Module:bfloat16() end

--- The buffers: tensors that belong to the module but are not trained.
---@return any[]
function Module:buffers() end

--- The modules held directly.
---@return any[]
function Module:children() end

--- Parameters and buffers on the CPU.
---@return gb.Module
function Module:cpu() end

--- Parameters and buffers on a GPU.
--- Errors: there is none.
---@param index? integer
---@return gb.Module
function Module:cuda(index) end

--- The tree of modules with parameter counts and dtypes, as tostring shows it.
---@return string
function Module:describe() end

--- Floating parameters and buffers in float64.
---@return gb.Module
function Module:double() end

--- Training off here and in every module inside.
---@return gb.Module
function Module:eval() end

--- A new class below this one; init(...) and forward(...) make it a layer.
---@param name string
---@return gb.Module
function Module:extend(name) end

--- What a layer says of itself between parentheses; layers override it.
---@return string
function Module:extra() end

--- Floating parameters and buffers in float32.
---@return gb.Module
function Module:float() end

--- What calling the module computes; classes define their own.
--- Errors: a class without one.
---@param ... any
---@return any
function Module:forward(...) end

--- Floating parameters and buffers in float16.
---@return gb.Module
function Module:half() end

--- What a class does with the arguments of its constructor; classes define their own.
---@param ... any
function Module:init(...) end

--- Copy state into the module. Missing and unexpected names are an error unless strict is false; returns both lists. What is shared may come
--- under any of its names, or under several with the same bits. Everything is checked before anything is changed.
--- Errors: tensors of another shape; a shared one with two values.
---@param state table
---@param options? { strict?: boolean }
---@return any[]
---@return any[]
function Module:load_state_dict(state, options) end

--- The module itself and every one inside it.
---@return any[]
function Module:modules() end

--- The buffers, as an iterator of name, tensor.
---@return function
function Module:named_buffers() end

--- The module itself, whose name is "", and every one inside it, as an iterator of name, module.
---@return function
function Module:named_modules() end

--- The parameters, as an iterator of name, tensor. Names are those of PyTorch's files and count from 0 ("blocks.0.weight" is
--- model.blocks[1].weight).
---@return function
function Module:named_parameters() end

--- The parameters, in order of first assignment; their names ride along for optimizers and reports.
---@return any[]
function Module:parameters() end

--- Pin what this module runs in when it is called, inside an autocast scope or outside: "float32" (autocast off, 16-bit arguments made
--- float32), "float16" or "bfloat16" (an autocast scope). Modules inside go along unless they are pinned themselves. "inherit" takes the pin
--- away. Returns the module; without a name, what it is pinned to, or nil.
---@param name? "float32"|"float16"|"bfloat16"|"inherit"
---@return any
function Module:precision(name) end

--- A tensor that belongs to the module but is not trained; persistent = false keeps it out of state_dict.
---@param name string
---@param tensor? gb.Tensor
---@param options? { persistent?: boolean }
function Module:register_buffer(name, tensor, options) end

--- fn(module, inputs, outputs...) after forward; a non-nil result replaces the output. Returns a function that removes it.
---@param fn function
---@return function
function Module:register_forward_hook(fn) end

--- A parameter under a name that is computed.
---@param name string
---@param parameter? gb.Tensor
function Module:register_parameter(name, parameter) end

--- Gradients by all parameters are wanted (or not).
---@param on? boolean
---@return gb.Module
function Module:requires_grad_(on) end

--- Use other's parameters and buffers as one's own (tied weights): both must be of one class and shape.
--- Errors: a module of another class.
---@param other gb.Module
---@return gb.Module
function Module:share(other) end

--- Parameters and persistent buffers by name, detached, sharing memory with the module. Names are those of PyTorch's files and count from 0
--- ("blocks.0.weight" is model.blocks[1].weight); what is shared has its first name only.
---@return table
function Module:state_dict() end

--- Move or convert floating parameters and buffers, keeping their identity. Takes a device, a dtype, or a precision object, in any order.
--- Errors: a dtype that is not floating.
---@param ... any
---@return gb.Module
function Module:to(...) end

--- Training on (or off) here and in every module inside: dropout drops, batch norms follow the batch.
---@param mode? boolean
---@return gb.Module
function Module:train(mode) end

--- Forget the gradients of all parameters.
function Module:zero_grad() end

--- An iterator of name, module, in the order of keys; so does pairs(dict).
---@return function
function ModuleDict:items() end

--- The names, in order of first assignment (sorted, for those the constructor got).
---@return any[]
function ModuleDict:keys() end

--- One more module at the end.
---@param module gb.Module
---@return gb.Module
function ModuleList:append(module) end

--- One more group { params = list, names = list or nil, and hyperparameters of its own }.
--- Errors: parameters that another optimizer has.
---@param group table
function Optimizer:add_param_group(group) end

--- Let go of the optimizer and of its state now, not when it is collected; its parameters stay, and another optimizer can take them.
function Optimizer:close() end

--- Go on from what state_dict gave; everything is checked before anything is changed.
--- Errors: a state of another kind, or of other parameters.
---@param state table
function Optimizer:load_state_dict(state) end

--- State by parameter, in order of adoption (copies), and the hyperparameters of every group.
---@return table
function Optimizer:state_dict() end

--- Change the parameters by their gradients; those without a gradient stay as they are.
function Optimizer:step() end

--- Forget the gradients of all parameters.
function Optimizer:zero_grad() end

--- The factor on the initial lr at step t (from 0): warmup first, then the schedule's own.
---@param t integer
---@return number
function Schedule:factor(t) end

--- The rates in force, one per group.
---@return any[]
function Schedule:get_last_lr() end

--- Go on from what state_dict gave.
--- Errors: a state without a count.
---@param state table
function Schedule:load_state_dict(state) end

--- The step it stands at and the initial rates.
---@return table
function Schedule:state_dict() end

--- One more step happened: the groups get their new lr.
function Schedule:step() end

--- One more module at the end.
--- Errors: what is not a module.
---@param module gb.Module
---@return gb.Module
function Sequential:append(module) end

--- In the forward of a gb.Function: tensors that backward needs; changing them in place before it is an error then.
---@param ... any
function ctx:save_for_backward(...) end

--- In the backward of a gb.Function: what forward saved, as several values.
---@return gb.Tensor|gb.Tensor[]
function ctx:saved_tensors() end

--- Let go of the dataset now, not when it is collected.
function dataset:close() end

--- The tensors of sample i (from 1, -1 is the last).
---@param i integer
---@return gb.Tensor|gb.Tensor[]
function dataset:get(i) end

--- The samples first .. last, both included, from 1; or those of a list of positions.
---@param first integer|any[]
---@param last? integer
---@return gb.dataset
function dataset:subset(first, last) end

--- The same value.
---@param other? any
function expect:to_be(other) end

--- A tensor or list whose elements all lie within tolerance (absolute plus relative) of another's; NaN equals NaN.
---@param other any
---@param tolerance? number
function expect:to_be_close(other, tolerance) end

--- Numbers within tolerance (absolute plus relative).
---@param other number
---@param tolerance? number
function expect:to_be_near(other, tolerance) end

--- Neither nil nor false.
function expect:to_be_truthy() end

--- The same dtype, shape and bits.
---@param other gb.Tensor
function expect:to_equal_bits(other) end

--- Calling the value raises an error whose text contains `text`.
---@param text? string
function expect:to_fail(text) end

--- Shape equal to a list.
---@param ... integer|integer[]
function expect:to_have_shape(...) end

--- A function that gradients pass through: forward(ctx, ...), backward(ctx, gradients...), which returns a gradient for each tensor argument,
--- and a name.
---@param options? { forward: function, backward: function, name?: string }
---@return function
function gb.Function(options) end

--- The name and the version.
---@type string
gb._VERSION = nil

--- What scales losses so that float16 gradients do not vanish, and skips steps whose gradients are not finite. precision (of amp.precision)
--- says whether one is needed; a disabled scaler passes everything on. scale is a number (static) or a function of the step (scheduled).
--- Errors: at step, after max_skips skips in a row.
---@param precision? gb.precision
---@param options? { enabled?: boolean, init_scale?: number, growth_factor?: number, backoff_factor?: number, growth_interval?: integer, min_scale?: number, max_scale?: number, max_skips?: integer, hysteresis?: integer, per_loss?: boolean, scale?: number|function }
---@return gb.GradScaler
function gb.amp.GradScaler(precision, options) end

--- Run one step and print what every op of it ran in: by module and recipe line, the autocast class, dtypes before and after casts, casts and
--- their bytes, M x N x K of products and whether Tensor Cores can run them or why not, the largest magnitude, and the shares of zeros, of what
--- 16 bits flush to 0, of subnormal numbers and of infinities. A summary says where the first value appeared that is not finite, and which
--- static loss scale the gradients ask for. step is a function, called as step(model, ...), that does a step of training or anything else; or
--- what comes is tensors, and model(...) runs. A last table { precision =, print = false } opens the scope of a precision around it, or prints
--- nothing. The step computes what it computes without the audit, to the bit. Returns the report: rows (phase, module, name, op, of, line,
--- class, why, inputs, outputs, casts, cast_bytes, reused, products, tensor_cores, obstacle, numbers, calls), casts, cast_bytes, operations,
--- eligible, first_nonfinite, overflowing, flushing, advice; tostring gives the text.
--- Errors: an audit inside another one, in a step that is captured as a graph, and a step that yields.
---@param model gb.Module
---@param step function|gb.Tensor
---@param ... any
---@return table
function gb.amp.audit(model, step, ...) end

--- Inside it each op runs in the dtype of its autocast class. precision: nothing (bfloat16), a dtype's name, { dtype =, enabled = }, or what
--- amp.precision gave. With a function: calls it with the arguments that follow and returns what it returns; without: a scope.
--- Errors: a dtype that is not float16 or bfloat16.
---@param precision? gb.precision|gb.DType|function|table
---@param fn? any
---@param ... any
---@return any
function gb.amp.autocast(precision, fn, ...) end

--- bytes and peak_bytes of the 16-bit weight copies that parameters keep.
---@return table
function gb.amp.cache_info() end

--- Inside it autocast is off; forms as no_grad's.
---@param fn? function
---@param ... any
---@return any
function gb.amp.disable(fn, ...) end

--- What ops of the class `lower` run in here, or nil where autocast is off.
---@return string
function gb.amp.dtype() end

--- Gradients of loss by inputs, unscaled float32, for penalties: options are those of gb.grad, and scaler.
---@param loss gb.Tensor|gb.Tensor[]
---@param inputs gb.Tensor|gb.Tensor[]
---@param options? { scaler?: gb.GradScaler, grad_outputs?: gb.Tensor|gb.Tensor[], retain_graph?: boolean, create_graph?: boolean, allow_unused?: boolean }
---@return any
function gb.amp.grad(loss, inputs, options) end

--- Is autocast on here?
---@return boolean
function gb.amp.is_enabled() end

--- What a floating format would make of a tensor's elements, exact at every boundary. The format is the scope's dtype unless it is named, else
--- float16. A record: numel, dtype, format, amax and amin (the largest finite magnitude, and the smallest above 0), shares from 0 to 1 of
--- elements that are zero, infinite, nan, and of the others that rounding to the format makes 0 (flushed), subnormal or infinite (overflowed);
--- the same as integers in counts; exponents[e], how many lie from 2^e up to 2^(e+1). Of a module, or a table of tensors by name: a list of {
--- name =, value = record, grad = record or nil }, without what is not floating. print shows either. Waits for the device.
--- Errors: a tensor of integers.
---@param x gb.Tensor|gb.Module|any
---@param options? { format?: "float16"|"bfloat16"|"float32"|"float64" }
---@return any
function gb.amp.numerics(x, options) end

--- Print what each module of the model runs in and why. Returns the rows, { name =, class =, precision = (nil: the scope's), from = }.
---@param model gb.Module
---@return any[]
function gb.amp.plan(model) end

--- Rules { pattern, precision }, which policy:apply pins modules by.
--- Errors: a rule of another form.
---@param rules table
---@return gb.policy
function gb.amp.policy(rules) end

--- One object that says what to convert, what scope to open and whether a scaler is needed: 32-true, 16-mixed, bf16-mixed, 16-true, bf16-true,
--- or another spelling of one. The environment variable GIBBOUS_AMP overrides the argument, so that a recipe can be tried in another precision
--- from outside; tostring shows it.
--- Errors: an unknown name.
---@param name any
---@return gb.precision
function gb.amp.precision(name) end

--- Autocast from here on: false, true (bfloat16), or what autocast takes; for the prompt.
---@param precision boolean|gb.precision|gb.DType|table
function gb.amp.set_autocast(precision) end

--- Inside it mistakes are told where they were made, at the price of speed. Devices wait after every op, so that what a kernel found wrong is
--- the error of that op, on the recipe's own line; and backward stops at the first gradient that is NaN, with the op and the line that called
--- it. Forms as no_grad's.
--- Errors: capturing a graph inside.
---@param fn? function
---@param ... any
---@return any
function gb.anomaly(fn, ...) end

--- first, first + step, ... below last. First is 0 and step 1 where they are left out: it is data, so it counts from 0. Whole numbers give
--- int64.
--- Errors: a step of 0.
---@param first? number
---@param last number
---@param step? number
---@param options? gb.Options
---@return gb.Tensor
function gb.arange(first, last, step, options) end

--- The options of a recipe, declared as a list of { name, default, help }, from the command line (or `from`, a list of strings): --name value,
--- --name=value, --name and --no-name for booleans; --help prints the list. A row of a number may carry least = number, below which a value is
--- refused; one of a string writes = true: it names a file that will be written, "" none, and is tried at once.
--- Errors: an unknown option, a value of another type than the default's, a file that cannot be written.
---@param list any[]
---@param from? table
---@return table
function gb.args(list, from) end

--- The one that the program around has chosen, else cuda where there is one, else cpu.
---@return string
function gb.best_device() end

--- Seconds of a clock that only goes forward, for measuring.
---@return number
function gb.clock() end

--- How many CUDA devices can be used.
---@return integer
function gb.cuda.device_count() end

--- Give memory that no tensor uses back to the device.
function gb.cuda.empty_cache() end

--- An object to call as step(...) is, which does what the step does to tensors, in one launch: the first call runs the step as it is, the
--- second captures it, the others replay it on the values they are given. The examples say the shapes and dtypes of the inputs. What changes
--- from step to step is followed: learning rate and weight decay, random numbers, the scale. A replay runs no Lua: schedules, printing and
--- reading belong outside, and the results are the same tensors again, with new values.
--- Errors: another shape, reading a value in the step, no CUDA device.
---@param step function
---@param examples gb.Tensor|gb.Tensor[]
---@return any
function gb.cuda.graph(step, examples) end

--- Can a CUDA device be used? Where not, also why.
---@return boolean
---@return string
function gb.cuda.is_available() end

--- The most bytes that were in tensors on the device at once.
---@param device? integer|string
---@return integer
function gb.cuda.max_memory_allocated(device) end

--- Bytes in tensors on the device.
---@param device? integer|string
---@return integer
function gb.cuda.memory_allocated(device) end

--- Where the device's memory is, for people: MiB in tensors now and at the peak, by category; what the pool has of the system, what of that is
--- cached and what belongs to captured graphs; what uploads pass through; what the whole device has left; and how often memory was asked for.
---@param device? integer|string
---@return string
function gb.cuda.memory_summary(device) end

--- What the device is: name, major and minor (of its compute capability), multiprocessors, driver, runtime, total_memory and free_memory in
--- bytes. The device is "cuda:N" or N; else the default one, where that is a CUDA device, or cuda:0.
--- Errors: there is no CUDA device.
---@param device? integer|string
---@return table
function gb.cuda.properties(device) end

--- max_memory_allocated begins again from what is held now.
function gb.cuda.reset_peak_memory_stats() end

--- Wait until the device has done all it was asked.
--- Errors: what a kernel found wrong in data, by its op; what else failed on the device since the last wait.
---@param device? integer|string
function gb.cuda.synchronize(device) end

--- Batches of a dataset, native or a table with `#` and get(i). prefetch: batches read ahead (native datasets). seed: gb's own unless given.
--- batches = n (native datasets): an epoch is n batches of samples drawn at random, with replacement.
---@param dataset any
---@param options? { batch_size?: integer, shuffle?: boolean, drop_last?: boolean, prefetch?: integer, seed?: integer, workers?: integer, batches?: integer }
---@return gb.DataLoader
function gb.data.DataLoader(dataset, options) end

--- Sample i is row i of each tensor.
--- Errors: different numbers of rows.
---@param ... gb.Tensor
---@return gb.dataset
function gb.data.TensorDataset(...) end

--- Files in MNIST's format, gzipped or not: images scaled to 0 .. 1, then normalised; labels as int64.
--- Errors: a file that is not of this format, or damaged.
---@param images string
---@param labels? string
---@param options? { mean?: number, std?: number }
---@return gb.dataset
function gb.data.idx(images, labels, options) end

--- The four standard files of MNIST in a folder (gzipped or not): the training and the test set. Where only the 10,000 test images are there,
--- the first 8,000 train and the last 2,000 test, and a line says so.
--- Errors: files that are not there.
---@param folder string
---@param options? { mean?: number, std?: number }
---@return gb.dataset
---@return gb.dataset
function gb.data.mnist(folder, options) end

--- A file as a sequence of ids, one for each character, or byte; the vocabulary is a string of the characters in the order of their ids.
--- Errors: a character that the vocabulary lacks.
---@param path string
---@param options? { kind?: "characters"|"bytes", vocabulary?: string }
---@return gb.text
function gb.data.text(path, options) end

--- A file of token ids, read window by window; with 16 bits also one with llm.c's header.
---@param path string
---@param options? { dtype?: "uint8"|"uint16"|"int32" }
---@return any
function gb.data.tokens(path, options) end

--- The full name of a device, such as cuda:0 for cuda.
--- Errors: a device that is not there, with the reason.
---@param name string
---@return string
function gb.device(name) end

--- The names of the devices that are there.
---@return any[]
function gb.devices() end

--- Prints what this machine can do for mixed precision (CPU features, threads, libraries and their versions, devices, dtypes, memory), each
--- line ok, warning or error with its cure; json is for machines. True: no line is an error.
---@param options? { json?: boolean }
---@return any
function gb.doctor(options) end

--- Memory for a shape, with whatever it holds.
---@param options? gb.Options
---@param ... integer|integer[]
---@return gb.Tensor
function gb.empty(options, ...) end

--- Give memory that no tensor uses back to the system.
function gb.empty_cache() end

--- Memory in the shape, dtype, device and memory order of x.
---@param x gb.Tensor
---@param options? gb.Options
---@return gb.Tensor
function gb.empty_like(x, options) end

--- Inside it ops are recorded for gradients; forms as no_grad's.
---@param fn? function
---@param ... any
---@return any
function gb.enable_grad(fn, ...) end

--- Ones on the diagonal of a matrix of zeros.
---@param rows integer
---@param columns? integer
---@param options? gb.Options
---@return gb.Tensor
function gb.eye(rows, columns, options) end

--- A new tensor whose memory is a copy of the string: row-major, little-endian. Without a shape it has one dimension. options: device.
--- Errors: a string that is longer or shorter than the shape, a byte of a bool that is neither 0 nor 1.
---@param bytes string
---@param dtype string
---@param shape? any[]
---@param options? gb.Options
---@return gb.Tensor
function gb.from_bytes(bytes, dtype, shape, options) end

--- value everywhere; the shape is a list. An integer gives int64, a boolean bool.
---@param shape any[]
---@param value number
---@param options? gb.Options
---@return gb.Tensor
function gb.full(shape, value, options) end

--- value everywhere, in the shape, dtype, device and memory order of x.
---@param x gb.Tensor
---@param value number
---@param options? gb.Options
---@return gb.Tensor
function gb.full_like(x, value, options) end

--- Where tensors are made that are not told otherwise.
---@return string
function gb.get_default_device() end

--- The dtype that new floating tensors have.
---@return string
function gb.get_default_dtype() end

--- "highest" or "high".
---@return string
function gb.get_float32_matmul_precision() end

--- How many threads run the kernels.
---@return integer
function gb.get_num_threads() end

--- The random stream, which is two integers: { seed =, offset = }.
---@return table
function gb.get_rng_state() end

--- The gradient of outputs by one tensor, or the list of those by a list; leaves' .grad stays as it is. retain_graph is create_graph unless
--- given; with allow_unused an input that was not used gives nil.
---@param outputs gb.Tensor|gb.Tensor[]
---@param inputs gb.Tensor|gb.Tensor[]
---@param options? { grad_outputs?: gb.Tensor|gb.Tensor[], retain_graph?: boolean, create_graph?: boolean, allow_unused?: boolean }
---@return any
function gb.grad(outputs, inputs, options) end

--- The next op fails with "interrupted", and every one after it, until gb.interrupt(false).
---@param on? boolean
function gb.interrupt(on) end

--- The Lua value of JSON text: arrays count from 1, integers stay integers.
--- Errors: text that is not JSON, with the place.
---@param text string
---@return any
function gb.io.json_decode(text) end

--- A Lua value as JSON text.
--- Errors: a value that JSON cannot hold.
---@param value gb.Tensor
---@return string
function gb.io.json_encode(value) end

--- Read a checkpoint into the parts given, restore the random state, and return `extra`. All or nothing: what cannot be read changes no part,
--- and where a part turns its state down, those before it are put back; for that their states are copied to the CPU's memory first. Parts
--- without state_dict come last, since they cannot be put back.
--- Errors: parts that the file lacks or that turn their state down, a file that is damaged or no checkpoint.
---@param path string
---@param parts table
---@return any
function gb.io.load_checkpoint(path, parts) end

--- Write the state of every named part: anything with state_dict (model, optimizer, scaler, schedule, loader), and `extra`, a plain table. The
--- random state is always saved. The file appears whole or not at all.
--- Errors: a part without state_dict, a value that cannot be saved.
---@param path string
---@param parts table
function gb.io.save_checkpoint(path, parts) end

--- Are ops recorded for gradients here?
---@return boolean
function gb.is_grad_enabled() end

--- Is this the error of an allocation that failed, the engine's or Lua's?
---@param message? any
---@return boolean
function gb.is_oom(message) end

--- Is this the second run of a function given to gb.recompute?
---@return boolean
function gb.is_recomputing() end

--- Is value a tensor that was not freed?
---@param value? any
---@return boolean
function gb.is_tensor(value) end

--- The engine's last failure: { code = "ESHAPE", op = "matmul", message = }, or nil.
---@return table
function gb.last_error() end

--- steps numbers at equal distances, both ends included.
---@param first number
---@param last number
---@param steps integer
---@param options? gb.Options
---@return gb.Tensor
function gb.linspace(first, last, steps, options) end

--- The tensors of a safetensors file by name, and its metadata. Tensors of a dtype that the engine does not have (F8_E4M3, I16, C64, ...) are
--- left out: a line is printed that names them and the cure, asking the table for one by its name is an error that says the same, and the third
--- table describes them: { name = { dtype =, shape =, message = } }.
--- Errors: a file that is damaged or of another format, which is named where it is known (a .pt, a zip, a pickle, GGUF, HDF5, ...); one of
--- which no tensor can be loaded.
---@param path string
---@return table
---@return table
---@return table
function gb.load(path) end

--- Begin the random stream anew from seed: the same seed gives the same bits. It seeds math.random too, whose state no checkpoint can keep;
--- gb.random draws from the stream.
---@param seed integer
function gb.manual_seed(seed) end

--- Bytes in tensors now and at the peak, by category, and what the pool holds of the system's memory, of one device or of all together:
--- current, peak (tables by category), current_total, peak_total, reserved, peak_reserved, allocations, system_allocations.
---@param device? string
---@return table
function gb.memory_stats(device) end

--- Each vector spread over the grid of all, the first along dimension 1.
---@param ... gb.Tensor
---@return gb.Tensor|gb.Tensor[]
function gb.meshgrid(...) end

--- Means over windows chosen so that the result has this size.
---@param ... integer|integer[]
---@return gb.Module
function gb.nn.AdaptiveAvgPool2d(...) end

--- The mean of each window of x [n, c, h, w]; stride is kernel unless given.
---@param ... integer|integer[]|{ stride?: integer|integer[], padding?: integer|integer[] }
---@return gb.Module
function gb.nn.AvgPool2d(...) end

--- -(y log x + (1 - y) log(1 - x)) of probabilities.
--- Errors: inside an autocast scope; BCEWithLogitsLoss is safe there.
---@param options? { weight?: gb.Tensor, reduction?: string }
---@return gb.Module
function gb.nn.BCELoss(options) end

--- Binary cross-entropy of logits, without overflow.
---@param options? { weight?: gb.Tensor, pos_weight?: number, reduction?: string }
---@return gb.Module
function gb.nn.BCEWithLogitsLoss(options) end

--- Normalise each channel of x [n, c] or [n, c, l] over the batch; by the running statistics when not training.
---@param features integer
---@param options? { eps?: number, momentum?: number, affine?: boolean, track_running_stats?: boolean }
---@return gb.Module
function gb.nn.BatchNorm1d(features, options) end

--- Normalise each channel of x [n, c, h, w] over the batch; by the running statistics when not training.
---@param features integer
---@param options? { eps?: number, momentum?: number, affine?: boolean, track_running_stats?: boolean }
---@return gb.Module
function gb.nn.BatchNorm2d(features, options) end

--- 2-D convolution of x [n, inputs, h, w].
--- Errors: groups that do not divide the channels.
---@param inputs integer
---@param outputs integer
---@param ... integer|integer[]|{ stride?: integer|integer[], padding?: integer|integer[], dilation?: integer|integer[], groups?: integer, bias?: boolean, activation?: "none"|"relu", dtype?: gb.DType }
---@return gb.Module
function gb.nn.Conv2d(inputs, outputs, ...) end

--- -log softmax(x)[target] of logits x [n, classes, ...]; targets are class indices from 0.
---@param options? { weight?: gb.Tensor, ignore_index?: integer, label_smoothing?: number, reduction?: string }
---@return gb.Module
function gb.nn.CrossEntropyLoss(options) end

--- In training, zero each element with probability p and scale the rest by 1 / (1 - p).
--- Errors: p outside 0 .. 1.
---@param p? number
---@return gb.Module
function gb.nn.Dropout(p) end

--- x where positive, else alpha * (exp(x) - 1).
---@param alpha? number
---@return gb.Module
function gb.nn.ELU(alpha) end

--- Rows of a trained table picked by integers from 0. padding_idx: a token id, from 0, whose row is zero and gets no gradient.
---@param rows integer
---@param size integer
---@param options? { padding_idx?: integer, dtype?: gb.DType }
---@return gb.Module
function gb.nn.Embedding(rows, size, options) end

--- The dimensions first .. last made one; the batch, dimension 1, stays unless told otherwise.
---@param first? integer
---@param last? integer
---@return gb.Module
function gb.nn.Flatten(first, last) end

--- x * Phi(x), by erf, or by tanh with approximate = "tanh".
---@param approximate? "none"|"tanh"
---@return gb.Module
function gb.nn.GELU(approximate) end

--- Its input.
---@return gb.Module
function gb.nn.Identity() end

--- target * (log target - x) for log-probabilities x; reduction may be "batchmean" too.
---@param options? { log_target?: boolean, reduction?: string }
---@return gb.Module
function gb.nn.KLDivLoss(options) end

--- |x - target|.
---@param options? { reduction?: string }
---@return gb.Module
function gb.nn.L1Loss(options) end

--- Normalise the last dimensions, of these sizes, then scale and shift. out: the dtype of the result under autocast, float32 or the scope's.
---@param ... integer|integer[]|{ eps?: number, affine?: boolean, bias?: boolean, out?: "float32"|"autocast", dtype?: gb.DType }
---@return gb.Module
function gb.nn.LayerNorm(...) end

--- x where positive, else slope * x.
---@param slope? number
---@return gb.Module
function gb.nn.LeakyReLU(slope) end

--- y = x @ weight^T + bias over the last dimension; weight [outputs, inputs].
---@param inputs integer
---@param outputs integer
---@param options? { bias?: boolean, activation?: string, dtype?: gb.DType }
---@return gb.Module
function gb.nn.Linear(inputs, outputs, options) end

--- x - log(sum(exp(x))) along dim.
---@param dim? integer
---@return gb.Module
function gb.nn.LogSoftmax(dim) end

--- linear, activation, linear in one op; outputs is inputs unless given.
---@param inputs integer
---@param hidden integer
---@param options? { outputs?: integer, bias?: boolean, activation?: string, dtype?: gb.DType }
---@return gb.Module
function gb.nn.MLP(inputs, hidden, options) end

--- (x - target)^2.
---@param options? { reduction?: string }
---@return gb.Module
function gb.nn.MSELoss(options) end

--- The largest element of each window of x [n, c, h, w]; stride is kernel unless given.
---@param ... integer|integer[]|{ stride?: integer|integer[], padding?: integer|integer[] }
---@return gb.Module
function gb.nn.MaxPool2d(...) end

gb.nn.Module = Module

--- Modules by name, dict.name; it has no forward of its own.
---@param dict? table
---@return gb.Module
function gb.nn.ModuleDict(dict) end

--- A list of modules, list[i] from 1; it has no forward of its own.
---@param list? any[]
---@return gb.Module
function gb.nn.ModuleList(list) end

--- Self attention over x [batch, time, size]: one projection to query, key and value, heads, one projection back; called as module(x, mask).
--- Errors: heads that do not divide the size.
---@param size integer
---@param heads integer
---@param options? { bias?: boolean, dropout?: number, is_causal?: boolean, dtype?: gb.DType }
---@return gb.Module
function gb.nn.MultiheadAttention(size, heads, options) end

--- -x[target] of log-probabilities.
---@param options? { weight?: gb.Tensor, ignore_index?: integer, reduction?: string }
---@return gb.Module
function gb.nn.NLLLoss(options) end

--- A tensor that modules discover and optimizers train. Takes over the tensor given.
---@param tensor gb.Tensor
---@param requires_grad? boolean
---@return gb.Tensor
function gb.nn.Parameter(tensor, requires_grad) end

--- Divide the last dimensions, of these sizes, by their root mean square, then scale. out: as in LayerNorm.
---@param ... integer|integer[]|{ eps?: number, affine?: boolean, out?: "float32"|"autocast", dtype?: gb.DType }
---@return gb.Module
function gb.nn.RMSNorm(...) end

--- max(x, 0).
---@return gb.Module
function gb.nn.ReLU() end

--- Modules one after another.
---@param ... gb.Module
---@return gb.Module
function gb.nn.Sequential(...) end

--- x * sigmoid(x).
---@return gb.Module
function gb.nn.SiLU() end

--- 1 / (1 + exp(-x)).
---@return gb.Module
function gb.nn.Sigmoid() end

--- Squared below beta, absolute above.
---@param options? { beta?: number, reduction?: string }
---@return gb.Module
function gb.nn.SmoothL1Loss(options) end

--- exp(x) / sum(exp(x)) along dim.
---@param dim? integer
---@return gb.Module
function gb.nn.Softmax(dim) end

--- log(1 + exp(beta * x)) / beta.
---@param beta? number
---@return gb.Module
function gb.nn.Softplus(beta) end

--- The hyperbolic tangent.
---@return gb.Module
function gb.nn.Tanh() end

--- The gain of an activation (LeCun's rule); leaky_relu takes its slope.
--- Errors: an activation without one.
---@param nonlinearity string
---@param slope? number
---@return number
function gb.nn.init.calculate_gain(nonlinearity, slope) end

--- Every element becomes value.
---@param t gb.Tensor
---@param value number
---@return gb.Tensor
function gb.nn.init.constant_(t, value) end

--- He et al. 2015: normal, with standard deviation gain / sqrt(fan); options as kaiming_uniform_'s.
--- Errors: fewer than 2 dimensions.
---@param t gb.Tensor
---@param options? { a?: number, mode?: "fan_in"|"fan_out", nonlinearity?: string }
---@return gb.Tensor
function gb.nn.init.kaiming_normal_(t, options) end

--- He et al. 2015: uniform, with standard deviation gain / sqrt(fan); a is the slope.
--- Errors: fewer than 2 dimensions.
---@param t gb.Tensor
---@param options? { a?: number, mode?: "fan_in"|"fan_out", nonlinearity?: string }
---@return gb.Tensor
function gb.nn.init.kaiming_uniform_(t, options) end

--- Normal random numbers.
---@param t gb.Tensor
---@param mean? number
---@param std? number
---@return gb.Tensor
function gb.nn.init.normal_(t, mean, std) end

--- Every element becomes 1.
---@param t gb.Tensor
---@return gb.Tensor
function gb.nn.init.ones_(t) end

--- Orthonormal rows or columns (Saxe et al. 2013), by Gram-Schmidt done twice, which is orthogonal to rounding.
--- Errors: fewer than 2 dimensions.
---@param t gb.Tensor
---@param gain? number
---@return gb.Tensor
function gb.nn.init.orthogonal_(t, gain) end

--- Normal random numbers within [low, high]: those outside are drawn again.
---@param t gb.Tensor
---@param mean? number
---@param std? number
---@param low? number
---@param high? number
---@return gb.Tensor
function gb.nn.init.trunc_normal_(t, mean, std, low, high) end

--- Uniform random numbers in [low, high).
---@param t gb.Tensor
---@param low? number
---@param high? number
---@return gb.Tensor
function gb.nn.init.uniform_(t, low, high) end

--- Glorot, Bengio 2010: normal, with variance 2 / (fan_in + fan_out).
--- Errors: fewer than 2 dimensions.
---@param t gb.Tensor
---@param gain? number
---@return gb.Tensor
function gb.nn.init.xavier_normal_(t, gain) end

--- Glorot, Bengio 2010: uniform, with variance 2 / (fan_in + fan_out).
--- Errors: fewer than 2 dimensions.
---@param t gb.Tensor
---@param gain? number
---@return gb.Tensor
function gb.nn.init.xavier_uniform_(t, gain) end

--- Every element becomes 0.
---@param t gb.Tensor
---@return gb.Tensor
function gb.nn.init.zeros_(t) end

--- Is value a module?
---@param value? any
---@return boolean
function gb.nn.is_module(value) end

--- A class of the library: its intermediate results may be dropped as soon as the next layer has read them, so forward must keep none of its
--- arguments. calls: forward calls modules that it holds. Sets nn[name].
---@param name string
---@param calls? boolean
---@return gb.Module
function gb.nn.library_class(name, calls) end

--- Scale the gradients so that their norm together is at most max_norm; returns the norm before, on a device as a tensor, so that nothing waits
--- for it. Where it is inf or NaN and no scaler skips the step, gradients become 0 or NaN, as in PyTorch.
--- Errors: such a norm, where error_if_nonfinite is true.
---@param parameters gb.Tensor|gb.Tensor[]
---@param max_norm number
---@param norm_type? number
---@param error_if_nonfinite? boolean
---@return number
function gb.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite) end

--- Limit each element of the gradients to -value .. value.
---@param parameters gb.Tensor|gb.Tensor[]
---@param value number
function gb.nn.utils.clip_grad_value_(parameters, value) end

--- Inside it nothing is recorded for gradients. With a function: calls it with the arguments that follow and returns what it returns; without:
--- a scope, which :close() or a to-be-closed variable ends.
---@param fn? function
---@param ... any
---@return any
function gb.no_grad(fn, ...) end

--- When a stop is asked for, fn runs between two steps of training, for at most grace seconds, and then the recipe ends. gb.on_stop(nil)
--- interrupts at once again. Lasts as long as the chunk that runs.
---@param fn? function
---@param options? { grace?: number }
function gb.on_stop(fn, options) end

--- Ones of a shape.
---@param options? gb.Options
---@param ... integer|integer[]
---@return gb.Tensor
function gb.ones(options, ...) end

--- Ones in the shape, dtype, device and memory order of x.
---@param x gb.Tensor
---@param options? gb.Options
---@return gb.Tensor
function gb.ones_like(x, options) end

--- Adam (Kingma, Ba 2015). Defaults: lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0, maximize = false.
---@param params any
---@param options? { lr?: number, betas?: any[], eps?: number, weight_decay?: number, maximize?: boolean }
---@return gb.Optimizer
function gb.optim.Adam(params, options) end

--- Adam with decoupled weight decay (Loshchilov, Hutter 2019). Defaults: lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0.01,
--- maximize = false.
---@param params any
---@param options? { lr?: number, betas?: any[], eps?: number, weight_decay?: number, maximize?: boolean }
---@return gb.Optimizer
function gb.optim.AdamW(params, options) end

--- Stochastic gradient descent over a list of tensors, or of groups { params =, lr =, ... }. Defaults: lr = 1e-3, momentum = 0, dampening = 0,
--- weight_decay = 0, nesterov = false, maximize = false.
---@param params any
---@param options? { lr?: number, momentum?: number, dampening?: number, weight_decay?: number, nesterov?: boolean, maximize?: boolean }
---@return gb.Optimizer
function gb.optim.SGD(params, options) end

--- The initial lr, after a warmup: in that many steps the rate rises from lr / warmup; every schedule has it.
---@param optimizer gb.Optimizer
---@param options? { warmup?: number }
---@return gb.Schedule
function gb.optim.lr.Constant(optimizer, options) end

--- Half a cosine from 1 to factor last over steps steps (Loshchilov, Hutter 2017, without restarts); warmup comes first, outside steps.
---@param optimizer gb.Optimizer
---@param options? { steps: number, last?: number, warmup?: number }
---@return gb.Schedule
function gb.optim.lr.Cosine(optimizer, options) end

--- fn(step) is the factor.
---@param optimizer gb.Optimizer
---@param options? { fn: function, warmup?: number }
---@return gb.Schedule
function gb.optim.lr.Lambda(optimizer, options) end

--- From factor first to factor last over steps steps.
---@param optimizer gb.Optimizer
---@param options? { steps: number, first?: number, last?: number, warmup?: number }
---@return gb.Schedule
function gb.optim.lr.Linear(optimizer, options) end

--- Draw numbers as a curve. Returns the text; prints it unless quiet.
---@param points gb.Tensor|any[]
---@param options? { width?: integer, height?: integer, title?: string, quiet?: boolean }
---@return string
function gb.plot(points, options) end

--- A bar over total steps on a terminal, one plain line per interval elsewhere. unit and unit_size say what a step is worth, for example
--- "tokens" and 768; interval is in seconds, between plain lines.
---@param total integer
---@param title? string
---@param options? { unit?: string, unit_size?: number, interval?: number }
---@return gb.progress
function gb.progress(total, title, options) end

--- Uniform random numbers in [0, 1).
---@param options? gb.Options
---@param ... integer|integer[]
---@return gb.Tensor
function gb.rand(options, ...) end

--- Uniform random numbers in [0, 1), in the shape, dtype, device and memory order of x.
---@param x gb.Tensor
---@param options? gb.Options
---@return gb.Tensor
function gb.rand_like(x, options) end

--- Random integers low .. high - 1 as int64; data, so low is 0 unless it is given.
---@param low? integer
---@param high integer
---@param shape any[]
---@param options? gb.Options
---@return gb.Tensor
function gb.randint(low, high, shape, options) end

--- Normal random numbers of mean 0 and deviation 1.
---@param options? gb.Options
---@param ... integer|integer[]
---@return gb.Tensor
function gb.randn(options, ...) end

--- Normal random numbers in the shape, dtype, device and memory order of x.
---@param x gb.Tensor
---@param options? gb.Options
---@return gb.Tensor
function gb.randn_like(x, options) end

--- 0 .. n-1 in random order, as int64.
---@param n integer
---@param options? gb.Options
---@return gb.Tensor
function gb.randperm(n, options) end

--- What fn(...) gives, but of what it computes only the tensors among its arguments are kept; backward runs it again, in the autocast scope and
--- with the random numbers of this call. fn must compute the same each time: tensors that it takes from elsewhere (upvalues, tables) and
--- modules' train or eval mode must still be as they were. Counters that a second run must not move ask gb.is_recomputing(). It cannot yield,
--- and gives at most four floating tensors.
---@param fn function
---@param ... any
---@return any
function gb.recompute(fn, ...) end

--- The peaks of memory_stats become what is held now.
function gb.reset_peak_memory_stats() end

--- A table of tensors by name, as safetensors. options: metadata, a table of strings. The file appears whole or not at all.
---@param path string
---@param tensors table
---@param options? table
function gb.save(path, tensors, options) end

--- The seed of the random stream.
---@return integer
function gb.seed() end

--- Where tensors are made that are not told otherwise.
---@param device string
function gb.set_default_device(device) end

--- The dtype that new floating tensors have; float32 at first.
--- Errors: a dtype that is not floating.
---@param dtype gb.DType
function gb.set_default_dtype(dtype) end

--- Whether only kernels that give the same bits each time may run, as is so from the start. With false the gradients of 16-bit attention on
--- CUDA come from cuDNN, which is faster and adds them up in an order that changes.
---@param value boolean
function gb.set_deterministic(value) end

--- "highest", or "high": matmul, linear, mlp, conv2d and attention, and their gradients, round float32 operands to 10 bits of mantissa (TF32)
--- and sum in float32.
---@param name "highest"|"high"
function gb.set_float32_matmul_precision(name) end

--- Recording for gradients on or off from here on, for the prompt.
---@param on boolean
function gb.set_grad_enabled(on) end

--- How many threads run the kernels; results do not depend on it.
--- Errors: fewer than 1.
---@param threads integer
function gb.set_num_threads(threads) end

--- How tensors are printed: precision in digits, threshold the elements that are shown in full.
---@param options? { precision?: integer, threshold?: integer, edge_items?: integer, line_width?: integer, scientific?: boolean|"auto" }
function gb.set_printoptions(options) end

--- Go on from where get_rng_state was asked.
---@param options? { seed: integer, offset: integer }
function gb.set_rng_state(options) end

--- A copy of what value holds: a number, a boolean, nested lists, or a tensor, which loses its history. Integers give int64, one float among
--- them the default dtype. options: dtype, device, requires_grad.
--- Errors: lists of different lengths or depths.
---@param value gb.Tensor
---@param options? gb.Options
---@return gb.Tensor
function gb.tensor(value, options) end

--- A group of cases.
---@param name string
---@param fn function
function gb.test.describe(name, fn) end

--- What a case expects of a value, the first of those that are given.
---@param ... any
---@return gb.expect
function gb.test.expect(...) end

--- Print the count, in the form that the runner adds up, and end with an error when something failed.
function gb.test.finish() end

--- What help() knows of a public name, or of a function or class: name, signature, doc, example, errors, and of an op also calls, shapes,
--- dtypes, autocast, derivative; or nil and the nearest name.
---@param what? any
---@return table
function gb.test.help_entry(what) end

--- One case. An error inside fails it, with its message.
---@param name string
---@param fn function
function gb.test.it(name, fn) end

--- The table of ops: rows { name, family, kind, autocast, derivative, signature, doc, where, public }.
---@return any[]
function gb.test.ops() end

--- The executable that runs this script: it stands before its own options.
---@return string
function gb.test.program() end

--- Every name that recipes can reach, sorted: rows { name =, value =, op = (the row of the op it is, if it is one) }.
---@return any[]
function gb.test.public_names() end

--- The texts of all records of public functions, then of each its sandbox level (0 none, 1 files, 2 strict), in turn.
---@return any[]
function gb.test.records() end

--- The seconds that fn(...) took, devices waited for before and after, and what it returned.
---@param fn function
---@param ... any
---@return number
---@return any
function gb.time(fn, ...) end

--- The elements of x as a string, row-major and little-endian whatever its layout and device are.
--- Errors: a string that would be longer than the limit on Lua's memory.
---@param x gb.Tensor
---@return string
function gb.to_bytes(x) end

--- The version, such as "0.1.0".
---@type string
gb.version = nil

--- Zeros of a shape, given as numbers or as one list. options: dtype, device, requires_grad.
---@param options? gb.Options
---@param ... integer|integer[]
---@return gb.Tensor
function gb.zeros(options, ...) end

--- Zeros in the shape, dtype, device and memory order of x.
---@param x gb.Tensor
---@param options? gb.Options
---@return gb.Tensor
function gb.zeros_like(x, options) end

--- What calling the graph does: the step on these inputs, replayed once it is captured.
---@param ... any
---@return any
function graph:replay(...) end

--- Let go of the handle; the hook stays.
function hook:close() end

--- The function that register_hook was given is called no more.
function hook:remove() end

--- The largest power of two, 2^127 at most, by which elements may be multiplied so that the largest exponent stays two below the format's: for
--- gradients, a static loss scale. nil where no element is finite and above 0.
---@return number
function numerics:advise() end

--- flushed, subnormal and overflowed, as shares, if every element were multiplied by a power of two. Estimated from the histogram: exact but
--- for values within half a step of a boundary, and for float64 ones beyond the range of float32, which share its end bins.
--- Errors: a scale that is no power of two.
---@param scale number
---@return table
function numerics:at_scale(scale) end

--- Pin each module whose whole name (as named_modules gives it) a pattern of Lua's matches; those that no rule matches stay as they are.
--- Errors: a rule that matches none, and two that match one module and differ; then nothing is pinned.
---@param model gb.Module
---@return gb.Module
function policy:apply(model) end

--- End the bar with a last line of text.
---@param text? string
function progress:close(text) end

--- n more steps are done; values, a table by name, are shown. Reading a tensor waits for it, so values are read only when the line is drawn.
---@param n? integer
---@param values? table
function progress:update(n, values) end

--- End the scope: what was before it holds again. Closing twice does nothing; so does collecting an open scope. Also its end as a to-be-closed
--- variable.
function scope:close() end

--- The gradients of this tensor by every leaf that requires them, added to leaf.grad; gradient is 1 for a single element. retain_graph is
--- create_graph unless given. With create_graph leaf.grad has the graph, which holds the leaf: set it to nil when you are done, or ask gb.grad,
--- else both stay until the host closes. What fails or is interrupted has added some of it, so zero the gradients before the next try.
--- Errors: no graph, a graph that was freed, a value that was changed in place.
---@param gradient? gb.Tensor
---@param options? { retain_graph?: boolean, create_graph?: boolean }
function tensor:backward(gradient, options) end

--- In bfloat16.
---@return gb.Tensor
function tensor:bfloat16() end

--- In bool: true where not zero.
---@return gb.Tensor
function tensor:bool() end

--- At most this many views of equal length along dim, the last one perhaps shorter.
---@param chunks integer
---@param dim? integer
---@return any[]
function tensor:chunk(chunks, dim) end

--- The values of source, broadcast and converted.
---@param source gb.Tensor
---@return gb.Tensor
function tensor:copy_(source) end

--- On the CPU; the tensor itself when it is there.
---@return gb.Tensor
function tensor:cpu() end

--- On a GPU.
--- Errors: there is none.
---@param index? integer
---@return gb.Tensor
function tensor:cuda(index) end

--- The same memory without history.
---@return gb.Tensor
function tensor:detach() end

--- The number of dimensions.
---@return integer
function tensor:dim() end

--- In float64.
---@return gb.Tensor
function tensor:double() end

--- The bytes of one element.
---@return integer
function tensor:element_size() end

--- expand to the shape of another tensor.
---@param other gb.Tensor
---@return gb.Tensor
function tensor:expand_as(other) end

--- Every element becomes value.
---@param value number
---@return gb.Tensor
function tensor:fill_(value) end

--- In float32.
---@return gb.Tensor
function tensor:float() end

--- This handle ends; the memory goes when nothing else holds it. Also the end of a to-be-closed variable.
function tensor:free() end

--- In float16.
---@return gb.Tensor
function tensor:half() end

--- In int32.
---@return gb.Tensor
function tensor:int() end

--- Do the elements lie in memory row by row, without gaps?
---@return boolean
function tensor:is_contiguous() end

--- Is the dtype a floating one?
---@return boolean
function tensor:is_floating_point() end

--- The value of the only element.
--- Errors: several elements.
---@return number
function tensor:item() end

--- In int64.
---@return gb.Tensor
function tensor:long() end

--- Memory in the dtype and on the device of this tensor.
---@param options? gb.Options
---@param ... integer|integer[]
---@return gb.Tensor
function tensor:new_empty(options, ...) end

--- value everywhere, in the dtype and on the device of this tensor.
---@param shape any[]
---@param value number
---@param options? gb.Options
---@return gb.Tensor
function tensor:new_full(shape, value, options) end

--- Ones in the dtype and on the device of this tensor.
---@param options? gb.Options
---@param ... integer|integer[]
---@return gb.Tensor
function tensor:new_ones(options, ...) end

--- gb.tensor in the dtype and on the device of this tensor.
---@param value gb.Tensor
---@param options? gb.Options
---@return gb.Tensor
function tensor:new_tensor(value, options) end

--- Zeros in the dtype and on the device of this tensor.
---@param options? gb.Options
---@param ... integer|integer[]
---@return gb.Tensor
function tensor:new_zeros(options, ...) end

--- Normal random numbers, of mean 0 and deviation 1 unless given.
---@param mean? number
---@param std? number
---@return gb.Tensor
function tensor:normal_(mean, std) end

--- The number of elements.
---@return integer
function tensor:numel() end

--- Indices that count from 0 made Lua's positions, which count from 1.
--- Errors: a tensor that is not of integers.
---@return gb.Tensor
function tensor:positions() end

--- Random integers low .. high - 1.
---@param low integer
---@param high integer
---@return gb.Tensor
function tensor:random_integers_(low, high) end

--- fn(grad) is called with each gradient that reaches this tensor; a tensor that it returns takes the gradient's place.
---@param fn function
---@return gb.hook
function tensor:register_hook(fn) end

--- Gradients by this tensor are wanted (or not).
--- Errors: integers; false for a result of ops.
---@param on? boolean
---@return gb.Tensor
function tensor:requires_grad_(on) end

--- reshape to the shape of another tensor.
---@param other gb.Tensor
---@return gb.Tensor
function tensor:reshape_as(other) end

--- Keep the gradient of a result of ops in .grad.
---@return gb.Tensor
function tensor:retain_grad() end

--- The size of a dimension, or the list of all.
---@param dim? integer
---@return any
function tensor:size(dim) end

--- Views of length positions along dim, the last perhaps shorter; or of the lengths in a list.
--- Errors: lengths that do not add up to the dimension.
---@param length integer|any[]
---@param dim? integer
---@return any[]
function tensor:split(length, dim) end

--- numel; min, max, mean, std of the finite elements; how many are nan, inf and zero.
---@return table
function tensor:stats() end

--- The elements between neighbours along a dimension, or the list of all.
---@param dim? integer
---@return any
function tensor:stride(dim) end

--- Each dimension repeated, as blocks; more counts than dimensions add dimensions in front.
---@param ... integer|integer[]
---@return gb.Tensor
function tensor:tile(...) end

--- In another dtype, on another device, or as another tensor is, in any order; the tensor itself where nothing changes.
--- Errors: a device that is not there.
---@param ... any
---@return gb.Tensor
function tensor:to(...) end

--- Nested lists of the elements; the value alone of a 0-d tensor.
---@return any
function tensor:tolist() end

--- In the dtype and on the device of another tensor.
---@param other gb.Tensor
---@return gb.Tensor
function tensor:type_as(other) end

--- The views at each position along dim.
---@param dim? integer
---@return any[]
function tensor:unbind(dim) end

--- Uniform random numbers in [low, high), 0 and 1 unless given.
---@param low? number
---@param high? number
---@return gb.Tensor
function tensor:uniform_(low, high) end

--- view in the shape of another tensor.
---@param other gb.Tensor
---@return gb.Tensor
function tensor:view_as(other) end

--- Every element becomes 0.
---@return gb.Tensor
function tensor:zero_() end

--- Let go of the text now, not when it is collected.
function text:close() end

--- The string of an integer tensor.
--- Errors: an id that the vocabulary lacks.
---@param ids gb.Tensor
---@return string
function text:decode(ids) end

--- The ids of a string, an int64 vector.
--- Errors: a character that the vocabulary lacks.
---@param string string
---@return gb.Tensor
function text:encode(string) end

--- The first share of the ids, and the rest.
---@param share number
---@return gb.text
---@return gb.text
function text:split(share) end

--- The characters in the order of their ids; nil for bytes.
---@return string
function text:vocabulary() end

--- How many ids there are.
---@return integer
function text:vocabulary_size() end

--- Samples x = ids[i .. i+block-1], y = the ids one further.
---@param block integer
---@return gb.dataset
function text:windows(block) end

return gb
