"""The problems of rule files (KT1xx), for ``kt explain``."""

from __future__ import annotations

from kt_core.errors.codes import Code

CODES = (
    Code(
        "KT100",
        "More findings than are shown",
        "A file has so many problems that only the first 200 are listed. The rest is "
        "counted. Correct what is shown and check again.",
        "rules.yaml: KT100 57 more findings in this file are not shown",
    ),
    Code(
        "KT101",
        "The rule file cannot be read",
        "There is no file of this name, it may not be read, or it is a folder, a pipe or "
        "a device. Nothing is ever waited for: to read a pipe, use - for standard input.",
        "rules/cpu.yml: KT101 cannot read the rule file: No such file or directory\n"
        "  help: did you mean rules/cpu.yaml?",
    ),
    Code(
        "KT102",
        "The folder holds no rule files",
        "A folder was given, and neither it nor any folder in it has a file that ends in "
        ".yaml or .yml. Hidden folders are not looked into.",
        "rules/empty: KT102 there is no .yaml or .yml file in this folder",
    ),
    Code(
        "KT103",
        "The rule file is too large",
        "A rule file may have 1 MiB, 2,000 rules and 1,000 values in one kwargs. Real "
        "files stay far below; the limits keep the cost of checking and matching in hand."
        " Rules that differ only in layer numbers can be joined by a pattern such as "
        "'^model\\.layers\\.([0-9]|1[0-9])\\.'.",
        "model.gguf: KT103 the file is larger than 1024 KiB, which no rule file is",
    ),
    Code(
        "KT104",
        "The file is not UTF-8 text",
        "Rule files are UTF-8. The place named holds a byte or character that does not "
        "belong into one: UTF-16 text, a NUL byte, a control character. Save the file as "
        "UTF-8.",
        "rules.yaml:1:1: KT104 the file is UTF-16, not UTF-8\n  help: save the file as UTF-8",
    ),
    Code(
        "KT105",
        "The file is not valid YAML",
        "The YAML parser stopped at the place named; what follows was not looked at. Most"
        " often a line is indented differently from its neighbours, or a pattern stands "
        "in double quotes, where each backslash must be doubled. Patterns are best "
        "written in single quotes.",
        "rules.yaml:2:15: KT105 \\. is not an escape in double quotes\n"
        "  help: name: '^model\\.layers\\.'",
    ),
    Code(
        "KT106",
        "A tab in a rule file",
        "YAML forbids tabs in indentation, and its parsers disagree about tabs elsewhere."
        " Use spaces. Tabs in comments are left alone.",
        "rules.yaml:3:1: KT106 a tab does not belong in a rule file\n  help: use spaces",
    ),
    Code(
        "KT107",
        "A reference to another value",
        "YAML's & and * let one value stand in several places. Rule files have no "
        "references: a few lines of them can stand for gigabytes, and tools that print or"
        " compare values do not survive that. Write the value out where it is needed.",
        "rules.yaml:7:13: KT107 *gpu refers to another place; rule files have no "
        "references\n"
        "  help: write the value out",
    ),
    Code(
        "KT108",
        "A merge key",
        "The key << copies the keys of another mapping in YAML 1.1; YAML 1.2 does not "
        "know it. Write the keys out.",
        "rules.yaml:9:7: KT108 << merges another mapping; rule files have no merge keys",
    ),
    Code(
        "KT109",
        "A tag",
        "A tag such as !!python/name:os.system tells a YAML reader to build something "
        "else than text, a number or a list. In other readers this has run code. Nothing "
        "is ever built from a tag here; delete it.",
        'rules.yaml:4:12: KT109 the tag "!!python/name:os.system" is not allowed',
    ),
    Code(
        "KT110",
        "A second document or a directive",
        "A rule file is one YAML document without % lines. What follows a second --- "
        "would belong to no file.",
        "rules.yaml:12:1: KT110 a second document begins here; a rule file holds one",
    ),
    Code(
        "KT111",
        "Nested too deep",
        "Lists and mappings may be nested 32 deep; a rule needs five levels. Deeper "
        "nesting is a bracket that was never closed, or an attack on the reader.",
        "rules.yaml:1:33: KT111 lists and mappings are nested more than 32 deep",
    ),
    Code(
        "KT112",
        "A key that is not a word",
        "Keys are text. An unquoted 1, true or no as a key is a number or a truth value "
        "to YAML. Only transfer_map has numbers as keys, which are layer numbers.",
        'rules.yaml:6:7: KT112 the key "1" is a whole number, not a word',
    ),
    Code(
        "KT113",
        "A key is given twice",
        "One mapping has the same key twice. Most YAML readers silently take the last "
        "one, so that half of what was written is lost. Often a new rule was begun "
        'without its "- ".',
        'rules.yaml:5:3: KT113 the key "match" is given twice\n'
        "  first given at rules.yaml:1:3\n"
        "  help: keep one of the two",
    ),
    Code(
        "KT114",
        "Not a list of rules",
        "A rule file is a list of rules, or a mapping with version, architectures, "
        "description and the list under rules. An empty file, a single rule without its "
        '"- ", or plain text is none.',
        'rules.yaml:1:1: KT114 this is one rule, not a list of rules\n  help: begin it with "- "',
    ),
    Code(
        "KT115",
        "There are no rules",
        "The list of rules is empty. That is allowed: every module keeps its own operator"
        " and stays on the default device. It is rarely meant, so it is a warning.",
        "rules.yaml:1:1: KT115 warning: there are no rules, so every module keeps its own operator",
    ),
    Code(
        "KT116",
        "An unknown key",
        "The key does not exist where it stands. It is misspelt, or stands one level too "
        "high or too low. KTransformers ignored such keys without a word; kt reads all of"
        " a file or nothing.",
        'rules.yaml:9:3: KT116 "recusive" is not a key of a rule\n'
        "  keys: match, replace, recursive, continue\n"
        "  help: recursive: false",
    ),
    Code(
        "KT117",
        "A value of the wrong kind",
        "The key is right, but its value is not what it takes: a list where a mapping "
        'belongs, text where true or false belongs, nothing at all. "false" in quotes is '
        "text.",
        'rules.yaml:8:14: KT117 recursive must be true or false, but is the text "false"\n'
        "  help: recursive: false",
    ),
    Code(
        "KT118",
        "A key is missing",
        "Every rule has match and replace, and a file in mapping form has rules. This is "
        "checked for every rule, whether or not a module would meet it.",
        "rules.yaml:4:3: KT118 rule 2 has no replace\n  help: replace: {class: default}",
    ),
    Code(
        "KT119",
        "An unknown version",
        "version names the version of the format. There is only version 1; a file without"
        " it is 1 too.",
        "rules.yaml:1:10: KT119 version must be 1, not 2\n  help: version: 1",
    ),
    Code(
        "KT120",
        "match is empty",
        "A rule needs a name (a pattern for the module path), a class, or both. To match "
        "everything, say so: name: '.*', at the end of the file.",
        "rules.yaml:1:10: KT120 match has neither name nor class",
    ),
    Code(
        "KT121",
        "An invalid pattern",
        "match.name is a regular expression in the syntax of Python's re module (what the"
        " regex module adds is accepted as well). A caret marks the character at fault.",
        "rules.yaml:2:11: KT121 the pattern is not valid at character 17: missing ), "
        "unterminated subpattern\n"
        "  pattern: ^model\\.layers\\.(0|1\n"
        "                          ^",
    ),
    Code(
        "KT122",
        "A value that two YAML versions read differently",
        "YAML 1.1 reads an unquoted no, 010, 1:30 or 2026-01-01 as false, eight, ninety "
        "and a date; YAML 1.2 reads some of them as text or other numbers. A rule file "
        "must mean the same to every tool. Write true or false, plain decimals, or put "
        "text in quotes.",
        "rules.yaml:6:14: KT122 warning: recursive: no is true or false only in YAML 1.1;"
        " it is read as false\n"
        "  help: recursive: false",
    ),
    Code(
        "KT123",
        "match.class is not a class name",
        "match.class is the dotted name of a class, such as torch.nn.Linear. It is "
        "compared with the names of a module's class and its bases, and never imported. A"
        " bare Linear could be anyone's.",
        'rules.yaml:3:12: KT123 match.class "Linear" is not the dotted name of a class\n'
        "  help: class: torch.nn.Linear",
    ),
    Code(
        "KT124",
        "A pattern that can never match",
        "The pattern asks for something that no module path has: a space, a slash, a "
        "backslash, text behind the end. Often a backslash was doubled although the "
        "pattern stands in single quotes.",
        "rules.yaml:2:11: KT124 warning: the pattern '^model\\\\.norm$' can never match: it "
        "asks for a backslash, which no module path contains\n"
        "  help: name: '^model\\.norm$'",
    ),
    Code(
        "KT125",
        "A layer number that may go on",
        "Patterns are searched, so '^model\\.layers\\.1' also finds layers 10 to 19. End "
        "the number with \\. or $.",
        "rules.yaml:2:11: KT125 warning: the pattern '^model\\.layers\\.1' ends in a number "
        "that may go on\n"
        "  it also finds model.layers.10\n"
        "  help: name: '^model\\.layers\\.1\\.'",
    ),
    Code(
        "KT126",
        "A rule that never applies",
        "The first rule that matches a module wins. An earlier rule without continue: "
        "true matches everything that this one matches, so this one never gets a module, "
        "whatever the model.",
        "rules.yaml:12:5: KT126 warning: rule 3 never applies: rule 1 (line 1) has the same match",
    ),
    Code(
        "KT127",
        "A rule that hides all rules below it",
        "The pattern matches every module, and the first match wins, so the rules below "
        "it are never reached. Rules for everything else belong at the end of a file.",
        "rules.yaml:2:11: KT127 warning: rule 1 matches every module, so no rule below it applies",
    ),
    Code(
        "KT128",
        "A rule that meets the model itself",
        "The model itself has the empty path. It can be matched, but is never replaced. A"
        " rule with recursive: false that matches it keeps the whole file from having any"
        " effect, which is an error.",
        'rules.yaml:2:11: KT128 the pattern ".*" matches the model itself, and recursive:'
        " false then keeps every rule of this file away",
    ),
    Code(
        "KT129",
        "A class that no model has",
        "Classes of KTransformers' model files are understood as those of transformers "
        "they were copied from. This one has no counterpart, or it is an operator, which "
        "no model contains before the rules are applied. So the rule matches nothing.",
        "rules.yaml:3:12: KT129 warning: no model contains "
        '"ktransformers.operators.experts.KExpertsCPU"',
    ),
    Code(
        "KT130",
        "continue without effect",
        "continue: true lets later rules add kwargs to the module. On the last rule there"
        " is nothing to continue with. Behind a rule that continues, the class of a later"
        " rule for the same modules is never used: the first one stays.",
        "rules.yaml:9:13: KT130 warning: continue: true has no effect: no rule follows",
    ),
    Code(
        "KT131",
        "default is misspelt",
        "replace.class: default keeps a module and only places it. The word is written in"
        " small letters without spaces.",
        'rules.yaml:4:12: KT131 "Default" is not default; case and spaces count\n'
        "  help: class: default",
    ),
    Code(
        "KT132",
        "A wrong value for an option",
        "The option exists, but the operator or kernel that declares it does not take "
        "this value. The fact below the message says what it is for.",
        "rules.yaml:8:19: KT132 group_size must be one of 32, 64, 128, not 48",
    ),
    Code(
        "KT133",
        "An unknown option",
        "Neither the operator nor its kernels declare this kwarg. KTransformers passed "
        "such kwargs on and lost them without a word. kt plugins lists operators and "
        "kernels.",
        'rules.yaml:7:7: KT133 kt_core.Linear has no option "generate_devcie"\n'
        "  help: generate_device: cuda",
    ),
    Code(
        "KT134",
        "An option that means nothing to default",
        "default keeps the module as it is and places it; it takes generate_device, "
        "prefill_device and out_device. It has one place for both phases. Anything else "
        "needs an operator.",
        'rules.yaml:6:7: KT134 "generate_op" means nothing to default, which keeps the '
        "module and only places it",
    ),
    Code(
        "KT135",
        "Not a device",
        "Devices are cpu, cuda, xpu and npu, the last three with an optional number: "
        "cuda:1. meta is where models are built without memory; nothing runs there. "
        "Whether a device exists on this machine is checked when a plan is made.",
        'rules.yaml:6:24: KT135 generate_device: "gpu" is not a device\n'
        '  help: generate_device: "cuda"',
    ),
    Code(
        "KT136",
        "A kernel that does not run on the device",
        "The kernel of a phase does not run on the device of that phase. A phase for "
        "which no kernel is named runs the other phase's. Name another device, or another "
        "kernel.",
        'rules.yaml:7:24: KT136 the kernel "kt_ops_cpu.experts" does not run on cuda:0\n'
        "  it runs on: cpu\n"
        '  help: generate_device: "cpu"',
    ),
    Code(
        "KT137",
        "A kernel of the wrong kind",
        "Linear layers and experts have different kernels. The one named is for the other kind.",
        'rules.yaml:8:20: KT137 "kt_core.torch_experts" is a kernel for experts, and '
        "kt_core.Linear needs one for linear",
    ),
    Code(
        "KT138",
        "A kernel for an operator that runs none",
        "The operator keeps the module's own computation, so it has no kernels to choose.",
        "rules.yaml:6:7: KT138 kt_core.Module runs no kernels, so generate_op means nothing to it",
    ),
    Code(
        "KT139",
        "No kernel is named",
        'generate_op or prefill_op is empty, or the word "None". KTransformers then ran '
        "the other phase's kernel, or crashed. Name the kernel that is to run, or leave "
        "the key out: the other phase's kernel then runs in both.",
        'rules.yaml:9:19: KT139 prefill_op: "None" names no kernel, but prefill needs one\n'
        "  help: prefill_op: KExpertsCPU",
    ),
    Code(
        "KT140",
        "An option is missing",
        "The operator or kernel declares an option that has to be given.",
        'rules.yaml:4:5: KT140 kt_example.Linear needs the option "rank"',
    ),
    Code(
        "KT141",
        "An option of KTransformers that kt does not have",
        "The file was written for KTransformers, and the option has no counterpart, or "
        "was never read even there. The fact below the message says which, and help says "
        "what to write.",
        'rules.yaml:7:7: KT141 "generate_linear_type" is an option of KTransformers that '
        "kt does not have\n"
        "  KTransformers took this key without reading it\n"
        "  help: generate_op: KLinearMarlin",
    ),
    Code(
        "KT142",
        "An option of KTransformers without effect",
        "The option has no counterpart here, but with this value it changed nothing, or "
        "it has an equal under another name. It is a note: the file works as it is.",
        "rules.yaml:8:7: KT142 note: dump_enable: false has no effect\n  help: delete dump_enable",
    ),
    Code(
        "KT143",
        "KTransformers rounds routers with this rule",
        "In KTransformers the routers of some models are ordinary linear layers, and a rule for "
        "all linear layers makes 4-bit weights of them too, which changes the experts that tokens "
        "meet. In transformers routers are classes of their own, so the same rule leaves them as "
        "precise as they are stored. It is a note, for whoever compares results.",
        "rules.yaml:8:11: KT143 note: the pattern also finds routers (model.layers.5.mlp.gate), "
        "which KTransformers rounds to 4 bits\n"
        "  KLinearMarlin makes 4-bit weights of what it is given there\n"
        "  help: nothing to do: here routers are no torch.nn.Linear and stay as precise as they are "
        "stored",
    ),
    Code(
        "KT144",
        "A module's path of an older model file",
        "transformers renamed a part of some models, and KTransformers' copies of the model files "
        "still have the old word. A pattern with it finds no module, so what it should place stays "
        "where the other rules put it. kt rules migrate writes the new word.",
        'rules.yaml:29:11: KT144 warning: "block_sparse_moe" is called mlp in transformers, so this '
        "pattern finds nothing\n"
        "  KTransformers has a copy of an older model file\n"
        "  help: name: '^model\\.layers\\..*\\.mlp\\.experts$'",
    ),
    Code(
        "KT160",
        "No rule file for this model",
        "Rule files say under architectures which models they are for. None of those that"
        " came with kt or a plugin names this one. Write one, or go without: every module"
        " then keeps its operator.",
        "KT160 there is no rule file for FalconForCausalLM\n"
        "  help: name a rule file with --rules FILE, or use --rules none",
    ),
    Code(
        "KT161",
        "Several rule files fit",
        "More than one rule file is meant for the model and the device, and none is "
        "closer than the others. Name the one you want.",
        "KT161 several rule files fit LlamaForCausalLM\n  help: choose one with --rules FILE",
    ),
    Code(
        "KT162",
        "No rule file for this device or variant",
        "There are rule files for the model, but none of that name, or none that uses "
        "only the CPU and the device asked for.",
        "KT162 no rule file for LlamaForCausalLM is made for xpu",
    ),
    Code(
        "KT163",
        "No rule replaces experts",
        "--kt-method exchanges the kernel of the rules whose operator runs experts. This rule file "
        "has none, usually because the model is dense.",
        "KT163 no rule of rules/llama/cpu.yaml replaces experts, so MOE_INT8 has nothing to run\n"
        "  help: use a rule file with class: kt_core.Experts, and a model that has experts",
    ),
    Code(
        "KT170",
        "A pattern takes too long",
        "Some patterns try so many ways to match that a single module path takes longer "
        "than a lifetime: repeats inside repeats, such as (.*)+ or (a|aa)*. Matching is "
        "stopped after a tenth of a second.",
        'rules.yaml:2:11: KT170 the pattern of rule 1 takes too long on "model.layers.0.mlp"',
    ),
    Code(
        "KT171",
        "Matching takes too long",
        "All rules against all modules took longer than half a minute. Patterns that "
        "begin with ^ and literal text are far cheaper than those that may match "
        "anywhere.",
        "rules.yaml:1:3: KT171 matching 2,000 rules against 400,000 modules takes longer than 30 s",
    ),
)
