"""Every validity rule `check` and `normalize` know, as data: one row a rule.

`grade` says what the rule rests on: D official documentation or specification, M measured against
the live API, R reported by users with the error text, C coded in a maintained library, I inferred.

`scope` says what a violation breaks: `prefix`, the history itself; `send`, only the request that
would carry it now (a call of the last turn is still open, the end is the model's); `normalizer`,
nothing in a history can show it, and `normalize` is held to it instead; `request`, a condition on
the rest of the request, told as a hint; `never`, a belief that is not a rule.

docs/rules.md is made from this table (`python -m stopkit.normalizer.rules`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Grade: TypeAlias = Literal["D", "M", "R", "C", "I"]
Scope: TypeAlias = Literal["prefix", "send", "normalizer", "request", "never"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of an API's history format.

    `says` is the rule, `when` where `check` looks and on which condition (defaults included),
    `repair` what `normalize` does about it, `never` the repair that would be a lie.
    """

    id: str
    grade: str
    """One or more of D M R C I, strongest first."""
    scope: Scope
    says: str
    when: str
    repair: str
    never: str = ""
    error: str = ""
    """The API's own words, as users see them."""


_GENERAL: Final = (
    Rule(
        "GEN-JSON-1",
        "D",
        "prefix",
        "Every value is JSON: string keys, finite numbers, no lone surrogates, at most 255 levels.",
        "Any value inside a message or item, at its path.",
        "A lone surrogate becomes U+FFFD, the report holds the original; anything else is a "
        "`HistoryError` that names the path.",
        never="A number in place of NaN.",
    ),
    Rule(
        "GEN-SHAPE-1",
        "D",
        "prefix",
        "Messages, items and known blocks have the field types of the API.",
        "Not an object, an unknown role, content of a wrong type, a block without a type, "
        "a known field of a wrong type.",
        "A `HistoryError` that names the path.",
    ),
    Rule(
        "GEN-2PRED-1",
        "M",
        "send",
        "A well-formed prefix may still grow; a sendable request may not. Open calls of the last "
        "turn and the end rules are errors of the second only.",
        "`valid` judges the prefix, `sendable` the request.",
        "None: both are told.",
        never="Closing a call only to make a prefix look sendable.",
    ),
    Rule(
        "GEN-LIVE-1",
        "C",
        "normalizer",
        "The calls of the last model turn may be alive; they are closed only on evidence.",
        "`evidence` running, or `live='keep'`.",
        "The call stays open and `pending` names it. `live='close'` is the caller's word that "
        "the history is at rest.",
        never="A made-up result for a running call.",
    ),
    Rule(
        "GEN-DET-1",
        "C",
        "normalizer",
        "Repair is deterministic and idempotent: no clock, no random ids, no set order.",
        "Held by tests over processes and hash seeds.",
        "Ids and words are derived from the history alone.",
    ),
    Rule(
        "GEN-LATE-1",
        "R",
        "normalizer",
        "A real result that exists anywhere is used; a placeholder the model has answered stays, "
        "and the late output is delivered as marked data where it arrived.",
        "Every call without its result in place.",
        "Moved to its call, or turned into marked data.",
        never="Two results for one call.",
    ),
    Rule(
        "GEN-TWOWAY-1",
        "R",
        "normalizer",
        "Calls without results and results without calls are both broken.",
        "Both directions, after every removal.",
        "See the pairing rules of each API.",
    ),
    Rule(
        "GEN-STORE-1",
        "R",
        "normalizer",
        "A repair is its own record beside the log: it comes back the same, and loses nothing.",
        "`undo()`, `Normalizer.dump()`.",
        "The input is never touched.",
    ),
    Rule(
        "GEN-NOREP-1",
        "I",
        "normalizer",
        "Some calls have no truthful made-up result: computer calls, hosted tools, redacted "
        "results, undecided approvals.",
        "Such a call without its result, not at the live end.",
        "It leaves, and the report holds it.",
        never="A screenshot, a hit, a decision nobody made.",
    ),
    Rule(
        "OUT-1",
        "R",
        "normalizer",
        "The words of a made-up result match the evidence; without evidence it is unknown.",
        "Every made-up result.",
        "One wording per outcome.",
        never="Denial words for a killed process; 'the user cancelled' for lost data; a hint to "
        "retry.",
    ),
)

_ANTHROPIC: Final = (
    Rule(
        "ANT-PAIR-1",
        "MDR",
        "prefix",
        "Each client tool_use has its tool_result in the user turn right after its assistant turn.",
        "A tool_use whose id is not in the leading run of results (ANT-PAIR-2), at the call. "
        "Scope send while the calls' turn is the last and only results follow it.",
        "The recorded result is moved up, else a typed made-up one is inserted.",
        never="Dropping a call that may have had effects; success words.",
        error="`tool_use` ids were found without `tool_result` blocks immediately after: {id}. "
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
    ),
    Rule(
        "ANT-PAIR-2",
        "M",
        "never",
        "What counts is the leading run of tool_result blocks over the following user messages; "
        "ids may stand in any order and the run may cross messages.",
        "Never a violation.",
        "None needed.",
    ),
    Rule(
        "ANT-PAIR-3",
        "MR",
        "prefix",
        "Any other block, string content or another role ends the run; results after it do not "
        "count.",
        "A result of the turn before that stands in a later message, behind the end of the run.",
        "Hoisted over what stands before it.",
        never="A made-up twin.",
    ),
    Rule(
        "ANT-PAIR-4",
        "MR",
        "prefix",
        "Each tool_result answers a tool_use of the assistant turn before it.",
        "A result whose id is not among that turn's calls, or that stands in an assistant message.",
        "Moved to its call; without one, it becomes attributed text.",
        never="An invented tool_use.",
        error="unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` "
        "block must have a corresponding `tool_use` block in the previous message.",
    ),
    Rule(
        "ANT-PAIR-5",
        "R",
        "prefix",
        "One result per call.",
        "A second result in the leading run for an id, at the second.",
        "Identical: the first stays. A recorded one beats a made-up one. Two recorded ones are "
        "kept in one block.",
        never="Keeping the placeholder over the real one.",
        error="each tool_use must have a single result. Found multiple `tool_result` blocks with "
        "id: {id}",
    ),
    Rule(
        "ANT-ORD-1",
        "DMR",
        "prefix",
        "In a user message results come first, images and text after.",
        "A result of the turn before that stands behind another block of its own message.",
        "Stable partition: results first.",
    ),
    Rule(
        "ANT-ORD-2",
        "IC",
        "normalizer",
        "Blocks of an assistant message are not reordered; they carry signed thinking.",
        "Every repair.",
        "An assistant message is split only around a result recorded inside it, and only where it "
        "holds no thinking.",
    ),
    Rule(
        "ANT-PLACE-1",
        "R",
        "prefix",
        "tool_use, thinking and server blocks stand in assistant messages only.",
        "Such a block in a user message.",
        "It leaves, and the report holds it; a tool_use becomes attributed text.",
    ),
    Rule(
        "ANT-SHAPE-1",
        "R",
        "prefix",
        "A message has role and content only; fields of a stored response are refused.",
        "A message with one of id, type, model, stop_reason, stop_sequence, stop_details, usage, "
        "container, context_management.",
        "The field leaves, and the report holds it.",
        error="{field}: Extra inputs are not permitted",
    ),
    Rule(
        "ANT-ID-1",
        "R",
        "prefix",
        "tool_use.id and tool_use_id match ^[a-zA-Z0-9_-]+$.",
        "A client call or result with another id, or none.",
        "Injective, deterministic rename on both sides.",
        error="String should match pattern '^[a-zA-Z0-9_-]+$'",
    ),
    Rule(
        "ANT-ID-2",
        "R",
        "prefix",
        "tool_use ids are unique in an assistant turn, merged neighbours included.",
        "A second tool_use with an id of its turn, at the second. Reuse in a later turn is no "
        "violation.",
        "Identical copies collapse; different calls are renamed with their results, paired by "
        "position.",
        never="Renaming a mere copy (it claims two runs); one global set of answered ids.",
        error="`tool_use` ids must be unique",
    ),
    Rule(
        "ANT-ID-3",
        "R",
        "prefix",
        "tool_use.input is a JSON object.",
        "Absent, or of another type.",
        "Whole JSON text is parsed; null, an empty list or nothing becomes {}; a fragment goes "
        "under the key `incomplete_arguments` with outcome not_started.",
        never="Completed JSON; bare {} for a cut call.",
        error="Input should be a valid dictionary",
    ),
    Rule(
        "ANT-ID-4",
        "RD",
        "prefix",
        "server_tool_use.id matches ^srvtoolu_[a-zA-Z0-9_]+$.",
        "A server_tool_use with another id.",
        "The foreign block and its result leave; results that are text become attributed text.",
        never="Minting a srvtoolu id for a search Anthropic never ran.",
        error="String should match pattern '^srvtoolu_[a-zA-Z0-9_]+$'",
    ),
    Rule(
        "ANT-ID-5",
        "D",
        "prefix",
        "mcp_tool_use names its server; a toolset call's toolset_name is echoed on its result.",
        "mcp_tool_use without server_name; a result whose toolset_name is not its call's.",
        "The name is echoed; an mcp call without a server leaves with its result.",
    ),
    Rule(
        "ANT-NAME-1",
        "R",
        "prefix",
        "tool_use.name matches ^[a-zA-Z0-9_-]{1,128}$.",
        "A tool_use with another name, or none.",
        "Other characters become _, nothing becomes `unnamed_tool`; the report holds the name. "
        "An unanswered call without a name was not_started.",
        error="String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
    ),
    Rule(
        "ANT-ROLE-1",
        "M",
        "prefix",
        "The first message is the user's.",
        "The first message has role assistant.",
        "A marked note goes before it.",
        never="Unmarked words in the user's mouth.",
        error='first message must use the "user" role',
    ),
    Rule(
        "ANT-ROLE-2",
        "MD",
        "never",
        "Alternation is not a rule: neighbours of one role are read as one turn.",
        "Never a violation.",
        "None needed.",
    ),
    Rule(
        "ANT-END-1",
        "DR",
        "send",
        "From Opus 4.6 and Sonnet 4.6 on the last message is not the assistant's; a paused server "
        "turn may be.",
        "The last message is the assistant's without open client calls. A violation when the "
        "request names such a model; without a model, not sendable and the hint needs_user_turn.",
        "None: the hint `needs_user_turn`.",
        never="Deleting the answer; an unmarked 'Continue.'.",
        error="This model does not support assistant message prefill. The conversation must end "
        "with a user message.",
    ),
    Rule(
        "ANT-END-2",
        "R",
        "send",
        "Where prefill is allowed, the last assistant text does not end in white space.",
        "The request names a model before 4.6 and the last message is the assistant's, its last "
        "block a text that ends in white space.",
        "The end of that text is stripped.",
        error="final assistant content cannot end with trailing whitespace",
    ),
    Rule(
        "ANT-END-3",
        "MR",
        "send",
        "The last message does not end in thinking; in the middle it may.",
        "The last message is the assistant's and ends in thinking or redacted_thinking.",
        "None: the hint `needs_user_turn`.",
        error="The final block in an assistant message cannot be `thinking`.",
    ),
    Rule(
        "ANT-SYS-1",
        "MD",
        "prefix",
        "A system message inside messages: only on newer models (Opus 4.8, 5, 5.5, Fable 5 and "
        "later), not first unless its content is [], after a user message (or an assistant message "
        "that ends in a server result), before an assistant message or at the end, never empty, "
        "holding text, tool_addition and tool_removal only.",
        "Placement and content always; the model only when the request names one.",
        "Slid forward to just before the next assistant message; on other models it becomes a "
        "marked user note.",
        never="Lifting text to system rank.",
        error="role 'system' must follow a 'user' message or an 'assistant' message ending in a "
        "server tool result",
    ),
    Rule(
        "ANT-SYS-2",
        "C",
        "prefix",
        "tool_addition and tool_removal name a tool of this request.",
        "When the request has tools.",
        "The directive leaves.",
        error="tool_addition/tool_removal references unknown tool '{name}'",
    ),
    Rule(
        "ANT-EMPTY-1",
        "MR",
        "prefix",
        "No empty text block, in either role, in results and in system messages too.",
        'A text block with "".',
        "The block leaves.",
        error="messages: text content blocks must be non-empty",
    ),
    Rule(
        "ANT-EMPTY-2",
        "MR",
        "prefix",
        "Nor one of white space only.",
        "A text block of white space, or string content of white space.",
        "The block leaves.",
        never="Filler words that read as the model's.",
        error="messages: text content blocks must contain non-whitespace text",
    ),
    Rule(
        "ANT-EMPTY-3",
        "MR",
        "prefix",
        "No message without content (an empty final assistant message apart, which we do not rely "
        "on).",
        'Content "", [] or null.',
        "The message leaves.",
        error="user messages must have non-empty content",
    ),
    Rule(
        "ANT-EMPTY-4",
        "C",
        "normalizer",
        "A removal can join or part turns.",
        "Pairing runs on what is left.",
        "See ANT-PAIR-1.",
    ),
    Rule(
        "ANT-THINK-1",
        "DR",
        "prefix",
        "thinking carries its signature, redacted_thinking its data.",
        "An absent or empty signature or data, or thinking that is no string.",
        "The block leaves, and the report holds it.",
        never="A forged, borrowed or empty signature; hidden thinking as visible text.",
        error="Invalid `signature` in `thinking` block",
    ),
    Rule(
        "ANT-THINK-2",
        "DR",
        "normalizer",
        "Signed blocks are immutable, in order, in place.",
        "Every repair.",
        "Signed blocks are passed on as they are.",
        error="`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
        "modified. These blocks must remain as they were in the original response.",
    ),
    Rule(
        "ANT-THINK-3",
        "DR",
        "send",
        "On manual-thinking models, with thinking enabled, the assistant turn before the current "
        "results starts with thinking.",
        "The request has thinking.type 'enabled', the last message is a user message of results, "
        "and the turn before it has calls and does not start with thinking.",
        "None: the hint `thinking_lost` (send with thinking off, or close the loop with a user "
        "turn).",
        never="A made-up thinking block.",
        error="Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
    ),
    Rule(
        "ANT-THINK-4",
        "M",
        "never",
        "Empty thinking text with a valid signature is normal.",
        "Never a violation.",
        "None needed: the signature decides.",
    ),
    Rule(
        "ANT-THINK-5",
        "DC",
        "send",
        "With thinking disabled, a final assistant message holds no thinking.",
        "The request has thinking.type 'disabled' and the last message is the assistant's with a "
        "thinking block.",
        "That message's thinking leaves in whole.",
        error="When thinking is disabled, an `assistant` message in the final position cannot "
        "contain `thinking`",
    ),
    Rule(
        "ANT-THINK-6",
        "DR",
        "request",
        "From Opus 5.5, Sonnet 5.5 and Fable 5.1 on each thinking block is bound to everything "
        "before it.",
        "A repair stands before a thinking block.",
        "The hint `thinking_prefix_changed` names the first such block; the request must carry "
        "thinking.block_binding.prefix_mismatch_behavior 'drop_block'.",
        error="Invalid `signature` in `thinking` block. The block is bound to a different "
        "conversation.",
    ),
    Rule(
        "ANT-THINK-7",
        "D",
        "prefix",
        "After a fallback inside a message, what stands before its last fallback block holds no "
        "thinking, tool_use or unpaired server call; the fallback block stays in place.",
        "thinking, redacted_thinking or tool_use before the last fallback block of a message.",
        "Those blocks leave, and the report holds them.",
        never="Moving or dropping the fallback block.",
    ),
    Rule(
        "ANT-THINK-8",
        "D",
        "never",
        "Progress text between calls can arrive as thinking with empty text; dropping empty "
        "thinking deletes it.",
        "Never a violation.",
        "Signed thinking stays, empty or not.",
    ),
    Rule(
        "ANT-SRV-1",
        "RC",
        "prefix",
        "A server_tool_use or mcp_tool_use has its result later in its message or at the start of "
        "the next assistant message, unless it is still open at the end.",
        "A server call without a result that is not open (ANT-SRV-3, ANT-SRV-5).",
        "The block leaves, and the report holds it.",
        never="A client tool_result for it.",
        error="tool use with id {id} was found without a corresponding result block",
    ),
    Rule(
        "ANT-SRV-2",
        "I",
        "normalizer",
        "A provider error nobody saw is not made up.",
        "Every open server call.",
        "See ANT-SRV-1.",
        never="Fabricated hits or provider errors.",
    ),
    Rule(
        "ANT-SRV-3",
        "DC",
        "prefix",
        "While a server call is open beside a client call, the reply holds tool_result blocks "
        "only; the server's result opens the next assistant message.",
        "Another block in the user turn after such an assistant turn.",
        "The extra blocks are deferred to the next user turn; with none, the report holds them "
        "as `deferred`.",
        never="Treating the server call as an orphan.",
    ),
    Rule(
        "ANT-SRV-4",
        "R",
        "prefix",
        "A hosted result has its call before it, in its own or the previous assistant message.",
        "A *_tool_result block with another id.",
        "It leaves, and the report holds it.",
        error="unexpected `tool_use_id` found in `{type}` blocks: {id}. Each `{type}` block must "
        "have a corresponding `server_tool_use` block before it.",
    ),
    Rule(
        "ANT-SRV-5",
        "D",
        "never",
        "A paused turn (open server call, no open client call, last message) is sent again as it "
        "is.",
        "Never a violation.",
        "Left as it is.",
        never="'Continue.' as the user.",
    ),
    Rule(
        "ANT-SRV-6",
        "R",
        "request",
        "Open programmatic work needs the latest container id in the request.",
        "A call with a code-execution caller is open, or its results are the last message, and the "
        "request has no container.",
        "The hint `container_required`.",
        error="container_id is required when there are pending tool uses generated by code "
        "execution with tools.",
    ),
    Rule(
        "ANT-SRV-7",
        "D",
        "prefix",
        "While programmatic calls are open the reply holds tool_result blocks only; caller stays "
        "on the call.",
        "A block other than tool_result in the user turn that answers a call whose caller is not "
        "direct.",
        "As ANT-SRV-3: deferred.",
    ),
    Rule(
        "ANT-SRV-8",
        "C",
        "prefix",
        "tool_reference in a result names a tool of this request.",
        "When the request has tools: a tool_reference with another tool_name.",
        "The reference becomes a line of text.",
    ),
    Rule(
        "ANT-TR-1",
        "R",
        "prefix",
        "With is_error true, result content is text only.",
        "A non-text block in such a result.",
        "Other blocks move behind the results; the text and is_error stay.",
        never="is_error turned to false.",
        error="all content must be type `text` if `is_error` is true",
    ),
    Rule(
        "ANT-TR-2",
        "D",
        "prefix",
        "Result content holds text, image, document, search_result, tool_reference.",
        "A known block type of another kind (tool_use, tool_result, thinking, server blocks) "
        "inside a result.",
        "It leaves, and the report holds it.",
    ),
    Rule(
        "ANT-TR-3",
        "DC",
        "prefix",
        "Result content may be absent; [] is refused.",
        "Content [] or null, or [] after its empty texts left.",
        "The content key leaves.",
        never="Invented output.",
    ),
    Rule(
        "ANT-TOOLS-1",
        "R",
        "request",
        "Some surfaces refuse tool blocks in a request without tools.",
        "The request has tools that are empty: a hint, and no violation.",
        "The hint `tools_required`.",
        error="Requests which include `tool_use` or `tool_result` blocks must define tools.",
    ),
    Rule(
        "ANT-CACHE-1",
        "R",
        "prefix",
        "At most 4 cache_control markers in a request, none on thinking or empty text.",
        "Each marker over the fourth (system and tools of the request counted first), at the "
        "earliest surplus block; a marker on thinking.",
        "The earliest surplus markers leave; a marker of a removed block moves to the cacheable "
        "block before it.",
        error="A maximum of 4 blocks with cache_control may be provided. Found {n}.",
    ),
    Rule(
        "ANT-LIM-1",
        "DR",
        "send",
        "At most 100,000 messages.",
        "A longer history, at the first message too many.",
        "None: reported.",
        never="A description in place of an image.",
    ),
    Rule(
        "ANT-CIT-1",
        "I",
        "normalizer",
        "Citations and encrypted parts of search results are opaque.",
        "Every repair.",
        "Kept or dropped with their whole pair.",
    ),
    Rule(
        "ANT-COMPACT-1",
        "DC",
        "prefix",
        'A compaction block goes back unchanged; its content is not "". What stands before it is '
        "still validated.",
        'A compaction block with content "".',
        "The block leaves, and the report holds it.",
    ),
    Rule(
        "ANT-STOP-1",
        "D",
        "normalizer",
        "Output of a refused turn is to be discarded; max_tokens can cut a call.",
        "A stored response with stop_reason refusal or max_tokens, or SDK message objects.",
        "A refused turn leaves; the last call of a cut turn is incomplete (ANT-ID-3).",
    ),
)

_RESPONSES: Final = (
    Rule(
        "OAI-PAIR-1",
        "R",
        "prefix",
        "Each call that the client runs has its output later in the input.",
        "A call without one, at the call. Scope send while no user message and no later model "
        "turn stands behind it.",
        "The recorded output is moved behind its group of calls, else a typed made-up one is "
        "inserted there.",
        never='"" as an output (it reads as success).',
        error="No tool output found for {family} {id}.",
    ),
    Rule(
        "OAI-PAIR-2",
        "R",
        "prefix",
        "Each output has its call before it.",
        "An output whose call_id no earlier call has (not judged under previous_response_id or "
        "conversation).",
        "Moved behind its call; without one, it becomes an attributed user message.",
        never="An invented call.",
        error="No tool call found for function call output with call_id {id}.",
    ),
    Rule(
        "OAI-PAIR-3",
        "RC",
        "prefix",
        "Each call family has its own output type.",
        "An output whose call_id belongs to a call of another family.",
        "Retyped where the content carries over, else attributed text and a made-up output.",
        error="No tool output found for {family} {id}.",
    ),
    Rule(
        "OAI-PAIR-4",
        "R",
        "prefix",
        "One output per call_id.",
        "A second output for a call, at the second.",
        "As ANT-PAIR-5.",
        error="Duplicate {type} for call_id '{id}'. Each function_call must have exactly one "
        "matching function_call_output",
    ),
    Rule(
        "OAI-SHELL-1",
        "R",
        "prefix",
        "local_shell_call_output answers by call_id; a shell_call_output's outcome knows exit and "
        "timeout only.",
        "A local_shell_call_output without call_id.",
        "call_id is copied from id where a local_shell_call has it. A made-up shell output has "
        "status incomplete, the words in stderr and exit_code -1, which no process returns.",
        never="exit_code 0, or a timeout that was none.",
        error="No tool output found for local shell call {id}.",
    ),
    Rule(
        "OAI-PATCH-1",
        "D",
        "prefix",
        "apply_patch_call.status is in_progress or completed, apply_patch_call_output.status "
        "completed or failed.",
        "Another status.",
        "A made-up output is failed, and says that the patch may be applied.",
        never="completed for an unknown one.",
    ),
    Rule(
        "OAI-COMP-1",
        "D",
        "prefix",
        "A compaction item carries encrypted_content; compaction_trigger is the last item.",
        "compaction without it; compaction_trigger elsewhere.",
        "The broken compaction leaves; the trigger moves to the end.",
    ),
    Rule(
        "OAI-CU-1",
        "DI",
        "prefix",
        "A computer_call is answered by a screenshot; pending safety checks are the developer's "
        "to acknowledge.",
        "An open computer_call (OAI-PAIR-1).",
        "The call leaves with its reasoning.",
        never="A made-up screenshot; an acknowledgement.",
        error="No tool output found for computer call {id}.",
    ),
    Rule(
        "OAI-CHAIN-1",
        "RI",
        "request",
        "Under previous_response_id or conversation the chain holds calls this input does not.",
        "The request has one of them.",
        "Outputs without a call stay; the hint `chained` says that the chain was not judged.",
        error="Duplicate item",
    ),
    Rule(
        "OAI-REAS-1",
        "R",
        "prefix",
        "A reasoning item is followed by the item it led to.",
        "The next item that is no reasoning is not one of the model's own (assistant message, "
        "call, hosted item). Scope send at the end.",
        "The reasoning leaves.",
        never="An empty message after it.",
        error="Item '{id}' of type 'reasoning' was provided without its required following item.",
    ),
    Rule(
        "OAI-REAS-2",
        "R",
        "normalizer",
        "An item whose reasoning left keeps no id that asks for it.",
        "Every removed reasoning.",
        "The id of the item behind it is stripped.",
        never="A made-up rs item.",
        error="Item '{id}' of type 'function_call' was provided without its required 'reasoning' "
        "item",
    ),
    Rule(
        "OAI-REAS-3",
        "R",
        "prefix",
        "encrypted_content is opaque and whole.",
        "A reasoning item whose encrypted_content is present and not a non-empty string or null.",
        "The item leaves, and ids that depend on it are stripped.",
        error="The encrypted content for item {id} could not be verified.",
    ),
    Rule(
        "OAI-ID-1",
        "R",
        "prefix",
        "No item id stands twice in an input.",
        "A second item with an id, at the second.",
        "Identical: the first stays. Different: the second's id is stripped, or the item leaves "
        "where its type needs an id.",
        never="A new id for the second.",
        error="Duplicate item found with id {id}. Remove duplicate items from your input and try "
        "again.",
    ),
    Rule(
        "OAI-ID-2",
        "R",
        "prefix",
        "An item id begins with its type's prefix.",
        "fc function_call, ctc custom_tool_call, msg message, rs reasoning, ws web_search_call, "
        "fs file_search_call, ci code_interpreter_call, ig image_generation_call, mcp mcp_call, "
        "mcpl mcp_list_tools, mcpr mcp_approval_request, with any other beginning; on outputs an "
        "id of fc (function_call_output) or ctc (custom_tool_call_output).",
        "Stripped where optional; else the item leaves.",
        error="Invalid 'input[{n}].id': '{id}'. Expected an ID that begins with '{prefix}'.",
    ),
    Rule(
        "OAI-ID-3",
        "DR",
        "prefix",
        "call_id has 1 to 64 characters, id at most 64.",
        "Another length, or no call_id on a call that needs one.",
        "Deterministic, injective shortening on both sides; a long id is stripped.",
        error="Invalid 'input[{n}].call_id': string too long. Expected a string with maximum "
        "length 64",
    ),
    Rule(
        "OAI-ID-4",
        "R",
        "prefix",
        "call_id is unique over the input.",
        "A second call with a call_id, at the second.",
        "Identical copies in one turn collapse; else the later pair is renamed.",
    ),
    Rule(
        "OAI-STORE-1",
        "R",
        "prefix",
        "With store false nothing on the server can be referred to.",
        "The request has store false: reasoning without encrypted_content, item_reference, an "
        "item id on a call or message.",
        "The item leaves; the id is stripped.",
        never="Switching store on; guessing what a reference held.",
        error="Item with id '{id}' not found. Items are not persisted when `store` is set to "
        "false.",
    ),
    Rule(
        "OAI-HOST-1",
        "DC",
        "prefix",
        "Hosted items have no client output; an unfinished one is nobody's to finish.",
        "web_search_call, file_search_call, code_interpreter_call, image_generation_call, mcp_call "
        "with a status other than completed, failed or incomplete.",
        "It leaves with the reasoning before it.",
        never="completed.",
    ),
    Rule(
        "OAI-MCP-1",
        "RC",
        "prefix",
        "An mcp_approval_request is answered by one mcp_approval_response.",
        "A request without a response (scope send at the live end), a response without a request, "
        "a second response.",
        "A refusal on evidence is sent; an undecided request leaves.",
        never="A decision nobody made.",
    ),
    Rule(
        "OAI-PROG-1",
        "DC",
        "prefix",
        "A program has its program_output later, unless it is still open at the end; its calls "
        "carry caller.",
        "A program without output that is not open; program_output.status other than completed or "
        "incomplete; a caller whose program is not in the input.",
        "The program leaves with what it owns, which becomes attributed text.",
    ),
    Rule(
        "OAI-NS-1",
        "C",
        "normalizer",
        "namespace stays on calls found by tool search.",
        "Every repair.",
        "Kept.",
        error="Missing namespace for function_call '{name}'. It does not exist in the default "
        "namespace.",
    ),
    Rule(
        "OAI-PHASE-1",
        "D",
        "normalizer",
        "phase stays on assistant messages.",
        "Every repair.",
        "Kept.",
        never="final_answer on a cut message.",
    ),
    Rule(
        "OAI-SHAPE-1",
        "D",
        "prefix",
        "arguments is a string; output a string of at most 10,485,760 characters or a list of "
        "input_text, input_image, input_file; names match ^[a-zA-Z0-9_-]+$, at most 128.",
        "function_call and custom_tool_call and their outputs.",
        "An object is serialised; other names as ANT-NAME-1; a longer output is cut, and the "
        "report holds the whole.",
    ),
    Rule(
        "OAI-SHAPE-2",
        "R",
        "prefix",
        "Assistant content is output_text or refusal; user, system and developer content is not.",
        "A text part of the wrong kind (input_text, output_text, text).",
        "Retyped.",
        error="Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'.",
    ),
    Rule(
        "OAI-SHAPE-3",
        "R",
        "prefix",
        "Unknown fields of known items are refused.",
        "A field that the item's type does not have; status on a user, system or developer "
        "message.",
        "The field leaves, and the report holds it.",
        error="Unknown parameter: 'input[{n}].{field}'.",
    ),
    Rule(
        "OAI-SHAPE-4",
        "C",
        "send",
        "An empty input needs a chain. Arguments that are no JSON object did not arrive whole.",
        "No items and neither previous_response_id, conversation nor prompt; a function_call whose "
        "arguments are no JSON object (scope prefix).",
        'As ANT-ID-3: empty becomes "{}", a fragment goes under `incomplete_arguments` with '
        "outcome not_started.",
    ),
)

_CHAT: Final = (
    Rule(
        "CHAT-PAIR-1",
        "R",
        "prefix",
        "Tool messages answer each tool_call_id right after its assistant message.",
        "A call without one in the block of tool messages behind it, at the call. Scope send while "
        "only tool messages follow it.",
        "As ANT-PAIR-1.",
        error="An assistant message with 'tool_calls' must be followed by tool messages responding "
        "to each 'tool_call_id'. The following tool_call_ids did not have response messages: {id}",
    ),
    Rule(
        "CHAT-ORD-1",
        "R",
        "prefix",
        "The tool messages of a turn stand in one block.",
        "A tool message that answers the last assistant message's call behind another message.",
        "Moved up.",
    ),
    Rule(
        "CHAT-PAIR-2",
        "R",
        "prefix",
        "A tool message answers a call of the assistant message before it.",
        "A tool message with another tool_call_id, or none.",
        "Moved to its call; without one, it becomes an attributed user message.",
        never="An invented call.",
        error="messages with role 'tool' must be a response to a preceeding message with "
        "'tool_calls'.",
    ),
    Rule(
        "CHAT-ID-1",
        "R",
        "prefix",
        "Call ids have 1 to 40 characters and are unique in a message; one tool message per id.",
        "Another length; a second call with an id in one message; a second tool message for an id "
        "in a block.",
        "Deterministic, injective rename on both sides; results as ANT-PAIR-5.",
        error="Invalid 'messages[{n}].tool_calls[{m}].id': string too long. Expected a string with "
        "maximum length 40",
    ),
    Rule(
        "CHAT-ARG-1",
        "DR",
        "prefix",
        "function.arguments is a string with a JSON object in it.",
        "Another type, or text that is no JSON object.",
        'As ANT-ID-3: an object is serialised, "" becomes "{}", a fragment goes under '
        "`incomplete_arguments` with outcome not_started.",
        error="arguments must be a valid JSON object string",
    ),
    Rule(
        "CHAT-EMPTY-1",
        "R",
        "prefix",
        "tool_calls is not an empty list.",
        "[] or null.",
        "The key leaves.",
        error="Invalid 'messages[{n}].tool_calls': empty array. Expected an array with minimum "
        "length 1",
    ),
    Rule(
        "CHAT-EMPTY-2",
        "DR",
        "prefix",
        "An assistant message has content, or calls (a refusal or audio also counts).",
        'Content null, "", [] or absent, without calls.',
        "The message leaves.",
        never="Invented words.",
        error="Invalid value for 'content': expected a string, got null.",
    ),
    Rule(
        "CHAT-TOOL-1",
        "D",
        "prefix",
        "Tool content is a string or text parts.",
        "null, absent, or a part of another type.",
        'Nothing becomes ""; other parts move to a user message behind the block.',
    ),
    Rule(
        "CHAT-FN-1",
        "D",
        "prefix",
        "A legacy function_call is answered by the next message, role function, same name; never "
        "mixed with tool_calls in one message.",
        "An unanswered function_call (scope send at the end), a function message without its call, "
        "both kinds in one message.",
        "A broken pair is converted to tool_calls and tool.",
    ),
    Rule(
        "CHAT-NAME-1",
        "D",
        "prefix",
        "function.name matches ^[a-zA-Z0-9_-]{1,64}$.",
        "Another name, or none.",
        "As ANT-NAME-1.",
    ),
    Rule(
        "CHAT-LAST-1",
        "R",
        "request",
        "Many hosts refuse a trailing assistant message; OpenAI does not.",
        "The last message is the assistant's without calls.",
        "The hint `needs_user_turn`.",
    ),
)

RULES: Final[dict[str, Rule]] = {
    rule.id: rule for rule in (*_GENERAL, *_ANTHROPIC, *_RESPONSES, *_CHAT)
}
"""All rules by id, in the order of the documentation."""
