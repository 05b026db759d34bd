-- lacking.lua - what functions, layers, losses, optimizers and schedules that are no rows of ops.def lack of golden
-- lines (tests/golden/calls.py and others), of a gradient in them, of a comparison under autocast, of hostile calls
-- (tests/lua/called.lua) and of a run on the emulated device, and why. tests/lua/test_coverage.lua fails where a name
-- lacks something else than its group says, or nothing. test: the file that names what has tests of another kind.

local all = "golden gradient autocast device"

return {
  { lacks = "golden gradient autocast hostile device",
    because = "each sets or prints something for the whole process, and has tests that call it with care",
    names = "gb.args gb.interrupt gb.plot gb.progress gb.set_num_threads gb.set_printoptions" },

  -- Results without a gradient.
  { lacks = "gradient", because = "it makes a new tensor of numbers or shapes",
    names = [[ gb.arange gb.bartlett_window gb.blackman_window gb.eye gb.fill gb.full gb.full_like gb.hamming_window
      gb.hann_window gb.kaiser_window gb.linspace gb.logspace gb.ones gb.ones_like gb.zeros gb.zeros_like
      gb.tril_indices gb.triu_indices ]] },
  { lacks = "gradient", because = "it gives truth values, counts or integers",
    names = [[ gb.allclose gb.equal gb.histogram gb.linalg.matrix_rank gb.nonzero_static gb.unravel_index
      tensor:allclose tensor:equal tensor:histogram tensor:nonzero_static tensor:type_as ]] },
  { lacks = "gradient", because = "PyTorch has none; test_linalg tests the one of B, and what is said of the others",
    test = "tests/lua/test_linalg.lua", names = "gb.linalg.ldl_factor gb.linalg.ldl_solve" },
  { lacks = "gradient", because = "it is a norm of gradients, and gives no gradient",
    names = "gb.nn.utils.get_total_norm" },
  { lacks = "gradient autocast", because = "it changes gradients after backward",
    test = "tests/lua/test_clip.lua", names = "gb.nn.utils.clip_grad_norm_" },

  -- Layers whose parts are compared under autocast in files of their own.
  { lacks = "autocast", because = "it is an encoder and a decoder, which test_calls compares",
    test = "tests/lua/test_transformer.lua", names = "gb.nn.Transformer" },
  { lacks = "autocast", because = "it is two linear layers and an op of attention, which have autocast tests",
    test = "tests/lua/test_nn.lua", names = "gb.nn.MultiheadAttention" },
  { lacks = all, because = "PyTorch has none; compared with its parts, and in tests/models with whole models",
    test = "tests/lua/test_transformer.lua", names = "gb.nn.TransformerBlock" },
  { lacks = all, because = "it holds modules or parameters, and computes nothing", test = "tests/lua/test_nn.lua",
    names = "gb.nn.Module gb.nn.ModuleDict gb.nn.ModuleList gb.nn.Parameter gb.nn.is_module" },
  { lacks = all, because = "it makes a class of the library", test = "tests/lua/test_reference.lua",
    names = "gb.nn.library_class" },
  { lacks = all, because = "compared there with the formula, its gradient with differences",
    test = "tests/lua/test_weights.lua",
    names = [[ gb.nn.utils.remove_spectral_norm gb.nn.utils.remove_weight_norm gb.nn.utils.spectral_norm
      gb.nn.utils.weight_norm ]] },
  { lacks = all, because = "it changes gradients or parameters in place", test = "tests/lua/test_training.lua",
    names = "gb.nn.utils.clip_grads_with_norm_ gb.nn.utils.vector_to_parameters" },
  { lacks = all, because = "it changes gradients in place", test = "tests/lua/test_clip.lua",
    names = "gb.nn.utils.clip_grad_value_" },
  { lacks = all, because = "it undoes pad_sequence, which has a line", test = "tests/lua/test_functions.lua",
    names = "gb.nn.utils.rnn.unpad_sequence" },
  { lacks = all, because = "it runs a function again in backward, with the bits that it had",
    test = "tests/lua/test_recompute.lua", names = "gb.nn.utils.recompute gb.recompute gb.is_recomputing" },

  -- What is drawn: our numbers are not PyTorch's, so moments and ranges are tested.
  { lacks = all, because = "it draws: moments and bounds are tested", test = "tests/lua/test_nn.lua",
    names = [[ gb.nn.functional.gumbel_softmax gb.nn.init.kaiming_normal_ gb.nn.init.kaiming_uniform_
      gb.nn.init.normal_ gb.nn.init.orthogonal_ gb.nn.init.trunc_normal_ gb.nn.init.uniform_
      gb.nn.init.xavier_normal_ gb.nn.init.xavier_uniform_ ]] },
  { lacks = all, because = "it sets numbers that the test counts", test = "tests/lua/test_nn.lua",
    names = "gb.nn.init.calculate_gain gb.nn.init.constant_ gb.nn.init.ones_ gb.nn.init.zeros_" },
  { lacks = all, because = "it sets or draws numbers that the test counts", test = "tests/lua/test_functions.lua",
    names = "gb.nn.init.dirac_ gb.nn.init.eye_ gb.nn.init.sparse_" },
  { lacks = all, because = "it draws: moments and bounds are tested", test = "tests/lua/test_functions.lua",
    names = [[ gb.normal gb.randint_like gb.random.fork tensor:bernoulli_ tensor:cauchy_ tensor:exponential_
      tensor:geometric_ tensor:log_normal_ tensor:random_ ]] },
  { lacks = all, because = "it draws, or is about what is drawn: moments, bounds and streams are tested",
    test = "tests/lua/test_random.lua",
    names = [[ gb.get_rng_state gb.manual_seed gb.rand gb.rand_like gb.randint gb.randn gb.randn_like gb.random.integer
      gb.random.number gb.random.shuffle gb.randperm gb.seed gb.set_rng_state tensor:normal_ tensor:random_integers_
      tensor:uniform_ ]] },

  -- What makes, moves or describes a tensor.
  { lacks = all, because = "it makes a tensor, or says what one is", test = "tests/lua/test_tensor.lua",
    names = [[ gb.empty gb.empty_like gb.is_tensor gb.tensor tensor:dim tensor:element_size tensor:is_floating_point
      tensor:item tensor:new_empty tensor:new_full tensor:new_ones tensor:new_tensor tensor:new_zeros tensor:numel
      tensor:size tensor:stats tensor:stride tensor:tolist tensor:zero_ tensor:fill_ ]] },
  { lacks = all, because = "it says what a tensor is", test = "tests/lua/test_layouts.lua",
    names = "tensor:is_contiguous" },
  { lacks = all, because = "it says what a tensor is, or converts it", test = "tests/lua/test_functions.lua",
    names = "gb.is_signed tensor:is_signed tensor:byte tensor:char tensor:short" },
  { lacks = all, because = "it converts: the row `to` has the numbers of every pair of dtypes",
    test = "tests/lua/test_tensor.lua",
    names = [[ tensor:bfloat16 tensor:bool tensor:double tensor:float tensor:half tensor:int tensor:long tensor:to ]] },
  { lacks = all, because = "it moves a tensor, or lets it go", test = "tests/lua/test_tensor.lua",
    names = "tensor:cpu tensor:cuda tensor:free" },
  { lacks = all, because = "it copies bits: compared with whole layouts", test = "tests/lua/test_layouts.lua",
    names = "tensor:copy_" },
  { lacks = all, because = "it is a loop's range of positions", test = "tests/lua/test_index.lua",
    names = "tensor:positions" },
  { lacks = all, because = "it is the graph itself", test = "tests/lua/test_autograd.lua",
    names = [[ gb.Function gb.enable_grad gb.grad gb.is_grad_enabled gb.no_grad gb.set_grad_enabled
      tensor:backward tensor:detach tensor:register_hook tensor:requires_grad_ tensor:retain_grad ]] },
  { lacks = all, because = "it watches the graph", test = "tests/lua/test_gradient_sums.lua", names = "gb.anomaly" },
  { lacks = all, because = "it is about bytes",
    test = "tests/lua/test_bytes.lua", names = "gb.from_bytes gb.to_bytes" },

  -- What is no function of tensors.
  { lacks = all, because = "it sets or says something of the whole library, and has tests of its own",
    names = [[ gb._VERSION gb.best_device gb.clock gb.device gb.devices gb.doctor gb.empty_cache gb.get_default_device
      gb.get_default_dtype gb.get_float32_matmul_precision gb.get_num_threads gb.is_oom gb.last_error gb.memory_stats
      gb.on_stop gb.profile gb.reset_peak_memory_stats gb.seconds gb.set_default_device gb.set_default_dtype
      gb.set_deterministic gb.set_float32_matmul_precision gb.summary gb.throughput gb.time gb.version ]] },
  { lacks = all, because = "it trains, measures or keeps a model, and has tests of its own",
    names = [[ gb.Checkpoints gb.EarlyStopping gb.Metrics gb.Trainer gb.evaluate gb.load gb.predict gb.save ]] },

  -- What test_made compares with lines of tests/golden/made.py or with its parts.
  { lacks = "gradient", because = "it gives counts, or a number in two parts", test = "tests/lua/test_made.lua",
    names = "gb.frexp gb.histogramdd" },
  { lacks = "gradient", because = "it makes new weights of a layer that is trained", test = "tests/golden/made.py",
    names = "gb.nn.utils.fuse_conv_bn_weights gb.nn.utils.fuse_linear_bn_weights" },
  { lacks = "autocast", because = "it is linear layers and an op that has an autocast test",
    test = "tests/lua/test_made.lua", names = "gb.nn.AdaptiveLogSoftmaxWithLoss gb.nn.LinearCrossEntropyLoss" },
  { lacks = all, because = "it draws: moments and bounds are tested", test = "tests/lua/test_made.lua",
    names = "gb.binomial gb.poisson" },
  { lacks = all, because = "it is a function that has lines", test = "tests/lua/test_made.lua",
    names = [[ gb.nn.FractionalMaxPool2d gb.nn.FractionalMaxPool3d gb.nn.LPPool3d gb.nn.RReLU gb.rrelu
      gb.nn.utils.fuse_conv_bn_eval gb.nn.utils.fuse_linear_bn_eval tensor:frexp ]] },
  { lacks = all, because = "it changes a layer in place, or is told of a gradient", test = "tests/lua/test_made.lua",
    names = "gb.nn.utils.orthogonal tensor:register_post_accumulate_grad_hook" },
  { lacks = all, because = "it holds parameters, and computes nothing", test = "tests/lua/test_hooks.lua",
    names = "gb.nn.ParameterDict gb.nn.ParameterList" },

  -- Optimizers and schedules.
  { lacks = "golden device", because = "it makes or lists optimizers and schedules that have lines",
    test = "tests/lua/test_trainer.lua", names = "gb.optim.lr.named gb.optim.named" },
  { lacks = "golden device", because = "it makes lists of parameters", test = "tests/lua/test_optim.lua",
    names = "gb.optim.groups" },
  { lacks = "golden device", because = "its statistics are compared with those of the batches",
    test = "tests/lua/test_average.lua", names = "gb.optim.update_bn" },
  { lacks = "golden device", because = "it is an optimizer's own update on many processes, with the same bits",
    test = "tests/dist/sharded.lua", names = "gb.optim.Sharded" },
}
