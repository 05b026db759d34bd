-- missing_names.lua - why names and options of PyTorch's are not there, by reason: data of cmake/coverage.lua, which
-- writes docs/coverage.md.
--
-- Names are written as in tests/golden/names.jsonl, an option as "F.max_pool2d(ceil_mode)"; * is any text.
-- `./dev docs` takes off a name that has appeared; one that PyTorch brings anew has to be built or get its reason.
-- `build/gibbous cmake/coverage.lua --add` puts it under the last.

return {
  -- Names that we call otherwise.
  renamed = {
    ["utils.parametrizations.orthogonal"] = "gb.nn.utils.orthogonal",
    ["F.celu_"] = "tensor:celu_", ["F.elu_"] = "tensor:elu_", ["F.hardtanh_"] = "tensor:hardtanh_",
    ["F.leaky_relu_"] = "tensor:leaky_relu_", ["F.relu_"] = "tensor:relu_", ["F.selu_"] = "tensor:selu_",
    ["F.threshold_"] = "tensor:threshold_",
    ["F.fold"] = "gb.nn.functional.col2im",
    ["F.unfold"] = "gb.nn.functional.im2col",
    ["Module.extra_repr"] = "Module:extra",
    ["Module.type"] = "Module:to",
    ["Tensor.data"] = "tensor:detach",
    ["Tensor.det"] = "gb.linalg.det",
    ["Tensor.get_device"] = "tensor.device",
    ["Tensor.inverse"] = "gb.linalg.inv",
    ["Tensor.is_cpu"] = "tensor.device",
    ["Tensor.is_cuda"] = "tensor.device",
    ["Tensor.matrix_power"] = "gb.linalg.matrix_power",
    ["Tensor.ndimension"] = "tensor:dim",
    ["Tensor.nelement"] = "tensor:numel",
    ["Tensor.pinverse"] = "gb.linalg.pinv",
    ["Tensor.repeat"] = "tensor:tile",
    ["Tensor.slogdet"] = "gb.linalg.slogdet",
    ["Tensor.T"] = "tensor:t",
    ["Tensor.mT"] = "tensor:transpose",
    ["Tensor.itemsize"] = "tensor:element_size",
    ["torch.get_device"] = "tensor.device",
    ["Tensor.svd"] = "gb.linalg.svd",
    ["Tensor.type"] = "tensor:to",
    ["lr_scheduler.ChainedScheduler"] = "gb.optim.lr.Chained",
    ["lr_scheduler.ConstantLR"] = "gb.optim.lr.Constant",
    ["lr_scheduler.CosineAnnealingLR"] = "gb.optim.lr.Cosine",
    ["lr_scheduler.CosineAnnealingWarmRestarts"] = "gb.optim.lr.CosineWarmRestarts",
    ["lr_scheduler.CyclicLR"] = "gb.optim.lr.Cyclic",
    ["lr_scheduler.ExponentialLR"] = "gb.optim.lr.Exponential",
    ["lr_scheduler.LambdaLR"] = "gb.optim.lr.Lambda",
    ["lr_scheduler.LinearLR"] = "gb.optim.lr.Linear",
    ["lr_scheduler.MultiStepLR"] = "gb.optim.lr.MultiStep",
    ["lr_scheduler.MultiplicativeLR"] = "gb.optim.lr.Multiplicative",
    ["lr_scheduler.OneCycleLR"] = "gb.optim.lr.OneCycle",
    ["lr_scheduler.PolynomialLR"] = "gb.optim.lr.Polynomial",
    ["lr_scheduler.ReduceLROnPlateau"] = "gb.optim.lr.ReduceOnPlateau",
    ["lr_scheduler.SequentialLR"] = "gb.optim.lr.Sequential",
    ["lr_scheduler.StepLR"] = "gb.optim.lr.Step",
    ["nn.DataParallel"] = "gb.nn.parallel.DataParallel",
    ["nn.NLLLoss2d"] = "gb.nn.NLLLoss",
    ["optim.swa_utils.AveragedModel"] = "gb.optim.Average",
    ["optim.swa_utils.SWALR"] = "gb.optim.lr.SWA",
    ["optim.swa_utils.update_bn"] = "gb.optim.update_bn",
    ["torch.are_deterministic_algorithms_enabled"] = "gb.set_deterministic",
    ["torch.as_tensor"] = "gb.tensor",
    ["torch.asarray"] = "gb.tensor",
    ["torch.constant_pad_nd"] = "gb.nn.functional.pad",
    ["torch.det"] = "gb.linalg.det",
    ["torch.frombuffer"] = "gb.from_bytes",
    ["torch.get_autocast_cpu_dtype"] = "gb.amp.dtype",
    ["torch.get_autocast_dtype"] = "gb.amp.dtype",
    ["torch.get_autocast_gpu_dtype"] = "gb.amp.dtype",
    ["torch.gru"] = "gb.nn.GRU",
    ["torch.gru_cell"] = "gb.nn.GRUCell",
    ["torch.inference_mode"] = "gb.no_grad",
    ["torch.initial_seed"] = "gb.get_rng_state",
    ["torch.inverse"] = "gb.linalg.inv",
    ["torch.is_anomaly_enabled"] = "gb.anomaly",
    ["torch.is_autocast_cpu_enabled"] = "gb.amp.is_enabled",
    ["torch.is_autocast_enabled"] = "gb.amp.is_enabled",
    ["torch.lstm"] = "gb.nn.LSTM",
    ["torch.lstm_cell"] = "gb.nn.LSTMCell",
    ["torch.matrix_power"] = "gb.linalg.matrix_power",
    ["torch.pinverse"] = "gb.linalg.pinv",
    ["torch.rnn_relu"] = "gb.nn.RNN",
    ["torch.rnn_relu_cell"] = "gb.nn.RNNCell",
    ["torch.rnn_tanh"] = "gb.nn.RNN",
    ["torch.rnn_tanh_cell"] = "gb.nn.RNNCell",
    ["torch.scalar_tensor"] = "gb.tensor",
    ["torch.set_anomaly_enabled"] = "gb.anomaly",
    ["torch.set_autocast_cpu_dtype"] = "gb.amp.set_autocast",
    ["torch.set_autocast_cpu_enabled"] = "gb.amp.set_autocast",
    ["torch.set_autocast_dtype"] = "gb.amp.set_autocast",
    ["torch.set_autocast_enabled"] = "gb.amp.set_autocast",
    ["torch.set_autocast_gpu_dtype"] = "gb.amp.set_autocast",
    ["torch.slogdet"] = "gb.linalg.slogdet",
    ["torch.svd"] = "gb.linalg.svd",
    ["torch.use_deterministic_algorithms"] = "gb.set_deterministic",
    ["utils.parametrizations.spectral_norm"] = "gb.nn.utils.spectral_norm",
    ["utils.parametrizations.weight_norm"] = "gb.nn.utils.weight_norm",
  },
  -- Options that we call otherwise: of one name, or wherever they stand.
  renamed_options = {
    ["nn.FractionalMaxPool3d(_random_samples)"] = "random_samples",
    ["nn.FractionalMaxPool2d(_random_samples)"] = "random_samples",
    ["F.fractional_max_pool3d(_random_samples)"] = "random_samples",
    ["F.fractional_max_pool2d(_random_samples)"] = "random_samples",
    ["torch.load(map_location)"] = "device",
    ["F.linear_cross_entropy(weight)"] = "class_weight",
    ["F.linear_cross_entropy(linear_weight)"] = "weight",
    ["F.linear_cross_entropy(linear_bias)"] = "bias",
    ["torch.set_printoptions(sci_mode)"] = "scientific",
    ["torch.set_printoptions(linewidth)"] = "line_width",
    ["torch.set_printoptions(edgeitems)"] = "edge_items",
    ["F.leaky_relu_(negative_slope)"] = "slope",
    ["nn.Parameter(data)"] = "tensor",
    ["nn.ParameterList(values)"] = "list",
    ["nn.ParameterDict(parameters)"] = "dict",
    ["nn.ModuleDict(modules)"] = "dict",
    ["F.leaky_relu(negative_slope)"] = "slope",
    ["F.one_hot(num_classes)"] = "classes",
    ["Module.cuda(device)"] = "index",
    ["Module.requires_grad_(requires_grad)"] = "on",
    ["Tensor.diagonal(dim1)"] = "first",
    ["linalg.diagonal(dim1)"] = "first",
    ["linalg.diagonal(dim2)"] = "second",
    ["Tensor.diagonal_scatter(dim1)"] = "first",
    ["Tensor.diagonal_scatter(dim2)"] = "second",
    ["torch.diagonal_scatter(dim1)"] = "first",
    ["torch.diagonal_scatter(dim2)"] = "second",
    ["Tensor.slice_scatter(start)"] = "first",
    ["Tensor.slice_scatter(end)"] = "last",
    ["torch.slice_scatter(start)"] = "first",
    ["torch.slice_scatter(end)"] = "last",
    ["Tensor.diagonal(dim2)"] = "second",
    ["Tensor.flatten(end_dim)"] = "last",
    ["Tensor.flatten(start_dim)"] = "first",
    ["Tensor.requires_grad_(requires_grad)"] = "on",
    ["Tensor.uniform_(from)"] = "low",
    ["Tensor.uniform_(to)"] = "high",
    ["elementwise_affine"] = "affine",
    ["init.calculate_gain(param)"] = "slope",
    ["init.trunc_normal_(a)"] = "low",
    ["init.trunc_normal_(b)"] = "high",
    ["init.uniform_(a)"] = "low",
    ["init.uniform_(b)"] = "high",
    ["lr_scheduler.CosineAnnealingLR(eta_min)"] = "last",
    ["lr_scheduler.LinearLR(end_factor)"] = "last",
    ["lr_scheduler.LinearLR(start_factor)"] = "first",
    ["lr_scheduler.LinearLR(total_iters)"] = "steps",
    ["nn.Flatten(end_dim)"] = "last",
    ["nn.Flatten(start_dim)"] = "first",
    ["nn.Hardtanh(max_value)"] = "max_val",
    ["nn.Hardtanh(min_value)"] = "min_val",
    ["nn.LeakyReLU(negative_slope)"] = "slope",
    ["nn.ModuleList(modules)"] = "list",
    ["nn.PReLU(num_parameters)"] = "channels",
    ["Tensor.diag_embed(dim1)"] = "first",
    ["Tensor.diag_embed(dim2)"] = "second",
    ["Tensor.roll(dims)"] = "dim",
    ["torch.diag_embed(dim1)"] = "first",
    ["torch.diag_embed(dim2)"] = "second",
    ["torch.roll(dims)"] = "dim",
    ["torch.diagonal(dim1)"] = "first",
    ["torch.diagonal(dim2)"] = "second",
    ["torch.flatten(end_dim)"] = "last",
    ["torch.flatten(start_dim)"] = "first",
    ["unbiased"] = "correction",
  },
  reasons = {
    {
      reason = "complex numbers",
      why = "There is no complex dtype.",
      names = [[
        Tensor.H Tensor.mH Tensor.adjoint torch.adjoint *.angle *.cdouble *.cfloat *.chalf *.conj *.conj_physical
        *.conj_physical_ *.imag *.real *.is_complex *.is_conj *.is_neg *.resolve_conj *.resolve_neg *.isreal
        torch.complex torch.polar torch.view_as_* linalg.eig linalg.eigvals Tensor.eig linalg.polar *(return_complex)
        linalg.ldl_factor(hermitian) linalg.ldl_solve(hermitian)
      ]],
    },
    {
      reason = "sparse",
      why = "There are no sparse layouts; gradients of embeddings are dense.",
      names = [[
        *.coalesce *.is_coalesced *col_indices* *crow_indices* *.row_indices* Tensor.indices Tensor.values
        torch.indices_copy torch.values_copy *.dense_dim *.sparse_dim *.sparse_mask *.sparse_resize* *.is_sparse*
        *.to_sparse* Tensor.to_dense *.resize_as_sparse_ *.hspmm *.smm *.sspaddmm torch.saddmm torch.spmm torch.dsmm
        torch.hsmm torch.sparse_* torch.lobpcg optim.SparseAdam *(sparse) *(sparse_grad)
      ]],
    },
    {
      reason = "quantised",
      why = "There are no quantised integers.",
      names = [[
        *.int_repr *.q_per_channel_* *.q_scale *.q_zero_point *.qscheme *.is_quantized *.dequantize torch.quantize*
        torch.fake_quantize_* torch.fbgemm_* torch.choose_qparams_optimized torch.empty_quantized
        torch.fused_moving_avg_obs_fake_quant F.scaled_*
      ]],
    },
    {
      reason = "named tensors",
      why = "Dimensions have no names.",
      names = [[
        Tensor.index Tensor.name
      ]],
    },
    {
      reason = "out= arguments",
      why = "A result is a new tensor, or an op is written in place (x:add_); memory comes back when a tensor is \z
        dropped.",
      names = [[
        *(out)
      ]],
    },
    {
      reason = "graph and jit internals",
      why = "Names of the compiler, the tracer, the dispatcher and functional transforms; capture is \z
        gb.cuda.graph.",
      names = [[
        *.compile torch.cond torch.sym_* torch.vmap torch.import_ir_module* torch.parse_*
        torch.merge_type_from_type_comment torch.unify_type_list torch.wait torch.fork torch.*_copy *.slice_inverse
        *.is_inference torch.is_inference_mode_enabled Tensor.module_load Tensor.hash_tensor torch.hash_tensor
        torch.typename torch.thread_safe_generator torch.init_num_threads Tensor.grad_dtype torch.is_distributed
        Tensor.is_distributed *.output_nr Tensor.grad_fn torch.autocast_*crement_nesting torch.clear_autocast_cache
        torch.is_autocast_cache_enabled torch.set_autocast_cache_enabled torch.is_anomaly_check_nan_enabled *.unsafe_*
        F.assert_int_or_pair *(_stacklevel) *(_freeze) *(_weight) optim.*(differentiable) *.is_same_size
      ]],
    },
    {
      reason = "storage internals",
      why = "Memory of a tensor is not an object of its own, and its address and strides are not set by hand; \z
        gb.to_bytes and gb.from_bytes copy it.",
      names = [[
        *.as_strided* *.storage* *.untyped_storage *.const_data_ptr Tensor.data_ptr *.dim_order *.empty_strided
        *.empty_permuted *.new_empty_strided *.set_ *.is_set_to *.is_shared *.share_memory* *.pin_memory *.is_pinned
        torch.is_storage Tensor.layout *(layout) *(pin_memory) *(memory_format) torch.from_file *.record_stream
        *.to_padded_tensor Tensor.is_nested nn.TransformerEncoder(enable_nested_tensor)
        nn.TransformerEncoder(mask_check) Tensor.resize_ Tensor.resize_as_ torch.resize_as_ *.narrow_copy *.as_subclass
        utils.convert_conv*
      ]],
    },
    {
      reason = "other devices and libraries",
      why = "A device is cpu or cuda; which library computes is the runtime's choice.",
      names = [[
        *.ipu *.xpu *.mtia *.is_ipu *.is_maia *.is_meta *.is_mkldnn *.is_mps *.is_mtia *.is_vulkan *.is_xla *.is_xpu
        *.to_mkldnn torch.is_vulkan_available torch.cudnn_* torch.miopen_* torch.mkldnn_* torch.*_autocast_ipu_*
        torch.*_autocast_xla_* torch.set_flush_denormal torch.*_num_interop_threads torch.batch_norm_* torch.native_*
        F.native_* torch.grid_sampler* torch.affine_grid_generator torch.convolution *_with_indices F.grouped_mm
        torch.*(cudnn_*) torch.embedding_renorm_ torch.norm_except_dim torch.feature_dropout* torch.nuclear_norm
        torch.frobenius_norm optim.*(fused) optim.*(foreach) optim.*(capturable) utils.*(foreach) Module.to_empty
      ]],
    },
    {
      reason = "Python's own",
      why = "They hand memory or code to Python, or name its types.",
      names = [[
        Module.register_forward_hook(with_kwargs) Module.register_forward_pre_hook(with_kwargs) Tensor.apply_
        Tensor.numpy torch.from_numpy torch.save(_*) Tensor.map_ Tensor.map2_ torch.Tensor torch.finfo torch.iinfo
        torch.can_cast torch.promote_types torch.result_type *(pickle_module) *(pickle_protocol) *(mmap) *(weights_only)
        *.is_warn_always_enabled *.set_warn_always torch.*deterministic_debug_mode
        torch.is_deterministic_algorithms_warn_only_enabled torch.use_deterministic_algorithms(warn_only)
        Module.T_destination Module.call_super_init Module.dump_patches
      ]],
    },
    {
      reason = "deprecated",
      why = "PyTorch keeps them for old code, warns, or fails.",
      names = [[
        F.gumbel_softmax(eps) nn.GRU(proj_size) nn.RNN(proj_size) nn.ConvTranspose1d(padding_mode)
        nn.ConvTranspose2d(padding_mode) nn.ConvTranspose3d(padding_mode) Tensor.symeig Tensor.lstsq Tensor.solve
        Tensor.qr Tensor.lu Tensor.cholesky Tensor.reinforce Tensor.volatile Tensor.new *.triangular_solve *.orgqr
        *.ormqr *.geqrf *.lu_solve torch.chain_matmul torch.range torch.set_default_tensor_type torch.trapz
        torch.row_stack nn.Container nn.CrossMapLRN2d F.upsample F.upsample_bilinear F.upsample_nearest
        nn.UpsamplingBilinear2d nn.UpsamplingNearest2d init.uniform init.normal init.constant init.eye init.dirac
        init.xavier_uniform init.xavier_normal init.kaiming_uniform init.kaiming_normal init.orthogonal init.sparse
        utils.clip_grad_norm Module.register_backward_hook *(size_average) *(reduce) *.clamp_max* *.clamp_min*
        F.conv_tbc torch.conv_tbc Tensor.is_nonzero torch.is_nonzero Tensor.svd(some) Tensor.svd(compute_uv)
        torch.svd(some) torch.svd(compute_uv) Tensor.pinverse(rcond) torch.pinverse(rcond) Tensor.norm(dtype)
        torch.norm(dtype) Tensor.resize Tensor.resize_as Tensor.stft(align_to_window) torch.stft(align_to_window)
      ]],
    },
    {
      reason = "layers without sizes",
      why = "A layer knows its sizes when it is made, so that its parameters, the plan of memory and an optimizer \z
        can be.",
      names = [[
        nn.Lazy* nn.UninitializedBuffer nn.UninitializedParameter utils.skip_init
      ]],
    },
    {
      reason = "results that do not fit in place",
      why = "The result has another dtype or shape than the tensor it would overwrite; write x = x:eq(y).",
      names = [[
        Tensor.eq_ Tensor.ne_ Tensor.lt_ Tensor.le_ Tensor.gt_ Tensor.ge_ Tensor.less_ Tensor.less_equal_
        Tensor.greater_ Tensor.greater_equal_ Tensor.not_equal_ Tensor.logical_*_ Tensor.squeeze_ Tensor.unsqueeze_
        Tensor.t_ Tensor.transpose_ Tensor.swapaxes_ Tensor.swapdims_ *.detach_
      ]],
    },
    {
      reason = "base classes",
      why = "A module of one's own extends nn.Module; a schedule of one's own is optim.lr.Lambda; an optimizer's \z
        step is native.",
      names = [[
        nn.RNNBase nn.RNNCellBase optim.Optimizer lr_scheduler.LRScheduler nn.Buffer nn.LinearCrossEntropyOptions
      ]],
    },
    {
      reason = "packed sequences",
      why = "A recurrent layer takes padded samples and their lengths: lstm(x, state, { lengths = n }).",
      names = [[
        utils.rnn.pack_* utils.rnn.unpack_* utils.rnn.pad_packed_* utils.rnn.PackedSequence
      ]],
    },
    {
      reason = "said elsewhere",
      why = "The device and dtype of a model are set by model:to(device, precision), seeds by gb.manual_seed, in \z
        place by the name (x:relu_); the weights of attention and of recurrent cells belong to their \z
        modules. Decoupled decay is AdamW, a random result has the dtype and device of its means, and \z
        dims are moved before tensorsolve. DataParallel runs on processes, each with \z
        its device, and cuts batches along dimension 1.",
      names = [[
        nn.DataParallel(device_ids) nn.DataParallel(dim) nn.DataParallel(output_device) nn.*(device) nn.*(dtype)
        *(generator) *(inplace) F.multi_head_attention_forward torch.*_cell(b_*) optim.Adam(decoupled_weight_decay)
        torch.dropout_ torch.alpha_dropout_ torch.feature_alpha_dropout_ torch.rrelu_ F.rrelu_ torch.normal(device)
        torch.normal(dtype) torch.randint_like(device) linalg.tensorsolve(dims) F.elu_(scale) F.elu_(input_scale)
      ]],
    },
    {
      reason = "hints",
      why = "They change how PyTorch computes or how much it copies, not what comes out; here the runtime decides.",
      names = [[
        nn.LinearCrossEntropyLoss(options) F.linear_cross_entropy(options) linalg.lstsq(driver) linalg.svd(driver)
        linalg.svdvals(driver) torch.einsum(path) torch.repeat_interleave(output_size)
        Tensor.repeat_interleave(output_size) Tensor.copy_(non_blocking) Tensor.expand(implicit)
        torch.isin(assume_unique) Module.zero_grad(set_to_none)
      ]],
    },
    {
      reason = "errors instead of flags",
      why = "What fails is an error that names the matrix; pcall catches it.",
      names = [[
        linalg.cholesky_ex linalg.inv_ex linalg.solve_ex linalg.lu_factor_ex linalg.ldl_factor_ex
      ]],
    },
    {
      reason = "walks of modules",
      why = "A walk gives all that is below a module, each thing once, under its full name; a recipe \z
        takes from the list what it wants, and adds a module by assigning a field.",
      names = [[
        Module.add_module Module.register_module Module.set_submodule Module.buffers(recurse)
        Module.modules(remove_duplicate) Module.named_buffers(prefix) Module.named_buffers(recurse)
        Module.named_buffers(remove_duplicate) Module.named_modules(memo) Module.named_modules(prefix)
        Module.named_modules(remove_duplicate) Module.named_parameters(prefix) Module.named_parameters(recurse)
        Module.named_parameters(remove_duplicate) Module.parameters(recurse)
      ]],
    },
    {
      reason = "states are tables",
      why = "A state is a table of names and tensors that a recipe may change, extend and rename \z
        before it is saved or loaded; a schedule goes on by load_state_dict.",
      names = [[
        Module.get_extra_state Module.set_extra_state Module.load_state_dict(assign)
        Module.register_load_state_dict_post_hook Module.register_load_state_dict_pre_hook
        Module.register_state_dict_post_hook Module.register_state_dict_pre_hook Module.state_dict(destination)
        Module.state_dict(keep_vars) Module.state_dict(prefix) lr_scheduler.MultiplicativeLR(last_epoch)
        lr_scheduler.SequentialLR(last_epoch) optim.swap_in_optimizer_params_and_state
      ]],
    },
    {
      reason = "not built yet",
      why = "Nothing speaks against them.",
      names = [[

      ]],
    },
  },
}
