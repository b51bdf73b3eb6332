"""KT3xx: rules, model, weights and machine do not fit together."""

from __future__ import annotations

from kt_core.errors.codes import Code

CODES = (
    Code(
        "KT301",
        "The model's architecture is not known",
        "The configuration names a model for which kt has no adapter, so the names of its weights "
        "cannot be translated. CONTRIBUTING.md says which files an adapter touches.",
        'KT301 kt does not know the architecture "WaveNetForCausalLM"\n'
        "  known: LlamaForCausalLM, Qwen3MoeForCausalLM",
    ),
    Code(
        "KT302",
        "The model cannot be built",
        "transformers refused the configuration. The cause is in the indented line.",
        "KT302 transformers cannot build a llama model from this configuration",
    ),
    Code(
        "KT303",
        "This is no plan, or one of another version",
        "Plan.from_json reads what kt plan --format json wrote, of the same format number.",
        "KT303 this plan has format 2, expected 1\n  help: write it again: kt plan --format json",
    ),
    Code(
        "KT304",
        "Configuration and weights are of different models",
        "The folder given as --model describes another architecture than the weight file. Leave "
        "--model out to use the file's own metadata.",
        "KT304 the configuration is of a llama model, x.gguf holds a qwen3 model\n"
        "  help: give the folder that belongs to the file, or leave --model out",
    ),
    Code(
        "KT305",
        "The rule file is for another model",
        "architectures in the rule file says which models it is for, and this one is not among "
        "them. Its patterns would match by accident or not at all. Let kt choose the file, or add "
        "the architecture if the rules do fit.",
        "rules.yaml:5:16: KT305 rules.yaml is for Qwen3MoeForCausalLM, the model is a "
        "LlamaForCausalLM\n"
        "  help: use --rules auto for the shipped file, or add the model to architectures: "
        "[Qwen3MoeForCausalLM, LlamaForCausalLM]",
    ),
    Code(
        "KT310",
        "The operator cannot take this module's place",
        "Every operator says which module classes it can stand for. The rule matches a module of "
        "another class; a class in the rule's match narrows it.",
        "KT310 kt_core.Linear cannot take the place of model.norm, a LlamaRMSNorm\n"
        "  it replaces: torch.nn.Linear\n"
        "  help: add to the rule's match: class: torch.nn.Linear",
    ),
    Code(
        "KT311",
        "The module holds no fused experts",
        "kt_core.Experts replaces the module that owns the experts' weights as three-dimensional "
        "parameters, usually mlp.experts, not the block around it.",
        "KT311 model.layers.0.mlp, a Qwen3MoeSparseMoeBlock, has no fused expert weights\n"
        "  help: match the module that holds the experts, e.g. name: mlp\\.experts$",
    ),
    Code(
        "KT312",
        "The experts' activation is not supported",
        "The configuration names an activation that no experts kernel computes.",
        'KT312 the experts\' activation "relu2" is not supported\n'
        "  help: keep the experts as they are: class: default",
    ),
    Code(
        "KT313",
        "Weights do not have the parameter's shape",
        "The file was made for another model than the configuration, or its metadata is wrong.",
        "KT313 model.embed_tokens.weight has the shape [259, 128], the file's tensors do not\n"
        "  token_embd.weight: [259, 64]\n"
        "  help: the weights belong to another model, or the configuration to another file",
    ),
    Code(
        "KT314",
        "The file lacks weights",
        "A parameter has no tensor under the name that the architecture stores it by. The nearest "
        "names that are there follow; a converter of another age may spell it differently.",
        "KT314 tiny.gguf lacks the weights of model.layers.0.self_attn.q_proj.bias\n"
        "  model.layers.0.self_attn.q_proj.bias: no blk.0.attn_q.bias; "
        "nearest: blk.0.attn_q.weight\n"
        "  help: look into the file: kt inspect tiny.gguf",
    ),
    Code(
        "KT320",
        "A rule names no device",
        "Devices are cpu, cuda, cuda:N, xpu and npu.",
        'rules.yaml:6:24: KT320 "gpu" is no device\n  help: use cpu, cuda, cuda:1, xpu or npu',
    ),
    Code(
        "KT321",
        "A device is not on this machine",
        "torch does not see the device that a rule or --device names. Nothing is moved elsewhere "
        "silently. To plan for another machine, say which devices to assume.",
        "rules.yaml:6:24: KT321 cuda:1 is not on this machine\n"
        "  rejected: torch sees 1 cuda device, numbered from 0\n"
        "  help: name a device that is here, or plan for another machine with "
        "--assume-devices cuda:1",
    ),
    Code(
        "KT322",
        "A kernel does not run on the device",
        "Each kernel lists the kinds of devices it computes on. Put the phase on one of those, or "
        "name another kernel.",
        "rules.yaml:6:24: KT322 kt_ops_cpu.linear does not run on cuda:0\n"
        "  it runs on: cpu\n"
        "  help: put this phase on cpu, or name another kernel",
    ),
    Code(
        "KT323",
        "A kernel cannot serve this module",
        "The kernel looked at the module's shape, its stored types and the options, and refused; "
        "each reason stands on a line of its own.",
        "rules.yaml:4:3: KT323 kt_ops_cuda.marlin cannot serve lm_head\n"
        "  rejected: group_size 96 is none of 32, 64, 128\n"
        "  help: name another kernel for this module, or match it with class: default",
    ),
    Code(
        "KT324",
        "A kernel cannot read the stored type",
        "Kernels that compute on packed weights list the types they know.",
        "rules.yaml:4:3: KT324 toy.linear cannot read IQ1_S weights of lm_head\n"
        "  it reads: F32, Q8_0\n"
        "  help: name another kernel for this module, or use a file of another quantisation",
    ),
    Code(
        "KT330",
        "A rule matches nothing",
        "No module of this model has a name and class that fit. The rule was written for another "
        "model, or its pattern has a mistake. kt plan --modules lists the modules. A rule is also dead "
        "if all modules it would match lie inside ones that a rule with recursive: false took.",
        "rules.yaml:8:3: KT330 warning: rule 2 matches no module of this model\n"
        "  name: ^model\\.layer\\.\n"
        "  help: list the modules: kt plan --modules",
    ),
    Code(
        "KT331",
        "A rule is shadowed",
        "Every module the rule matches is taken by earlier rules, so it never has an effect.",
        "rules.yaml:8:3: KT331 warning: rule 2 is shadowed: earlier rules take all 210 modules "
        "it matches\n"
        "  taken by: rule 1 (210)\n"
        "  help: move it up, or delete it",
    ),
    Code(
        "KT332",
        "transfer_map contradicts the layers' devices",
        "transfer_map places the modules of a layer, and of those after it, whose own rules name no "
        "device. Where they do name one, it must be the same: hidden states move to wherever a layer "
        "lives, and nothing else is moved silently. Without transfer_map the rules alone decide.",
        "rules.yaml:30:7: KT332 transfer_map puts layer 30 on cuda:1, but other rules put it on cuda:0\n"
        "  layers that differ: 30 of 30 to 59\n"
        "  help: delete transfer_map, or place layer 30 on cuda:1",
    ),
    Code(
        "KT333",
        "Tensors of the file belong to no module",
        "The model was built from the file's own description, and still some tensors are left: a "
        "bias that the model's class does not have, or layers of another kind. The answer may lack "
        "what they would have added. Tensors that are known to be spare are not reported.",
        "KT333 warning: no module of the model takes 1 of the file's tensors\n"
        "  left over: blk.0.attn_output.bias\n"
        "  help: the file may be of a variant of the model that computes something else",
    ),
    Code(
        "KT334",
        "A kernel would round routers coarsely",
        "A router's scores decide which experts a token meets, and differences between them are "
        "small. KTransformers' rule files for Qwen's MoE models round routers to four bits along "
        "with all other linear layers. kt warns of it; with --strict it is an error. Leave the "
        "routers out of the rule, or use a file that stores them in a format the kernel keeps.",
        "rules.yaml:12:3: KT334 warning: kt_ops_cuda.marlin would round 28 routers coarsely, "
        "model.layers.0.mlp.shared_expert_gate among them\n"
        "  a router's small differences decide which experts a token meets\n"
        "  help: leave them out of the rule: name: '^(?!.*\\.shared_expert_gate$)…'",
    ),
    Code(
        "KT336",
        "An attention's kv_b_proj is not where it can be absorbed",
        "kt_core.MlaAttention multiplies queries and latents by kv_b_proj from both sides, so it needs "
        "the matrix itself, in the model's dtype, on its own device. A rule gave it to a kernel or put "
        "it elsewhere. Exclude it from the rule for linear layers.",
        "rules.yaml:9:3: KT336 kt_core.MlaAttention needs model.layers.0.self_attn.kv_b_proj in the "
        "model's dtype, but kt_core.Linear takes it\n"
        "  help: leave it out of that rule: name: ^(?!.*kv_b_proj$)model\\.layers\\.",
    ),
    Code(
        "KT340",
        "Parameters would stay without values",
        "After loading, something was still on the meta device: the adapter of the architecture "
        "does not know it. Loading stops instead of failing at the first forward.",
        "KT340 1 parameters or buffers would stay without values\n"
        "  model.rotary_emb.table\n"
        "  help: report the model's architecture; its adapter misses them",
    ),
    Code(
        "KT350",
        "There is no such module",
        "kt plan --why takes the dotted path of a module, as kt plan --modules lists them.",
        'KT350 the model has no module "model.layer.0"\n'
        "  nearest: model.layers.0\n"
        "  help: list the modules: kt plan --modules",
    ),
)
