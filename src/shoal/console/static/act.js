// Acts: what an operator may do here, each with a reason, and the equivalent command line.
"use strict";
((S) => {
  const { html, useEffect, useRef, useState } = htmPreact;

  /**
   * What can be done: which permission it takes, what it is called, whether it hurts (then the name is typed), and its
   * command. Submitting, tokens and revoking are not here: they never go over the web.
   */
  const ACTS = {
    stop: { kind: "jobs", word: "Stop", hurts: true, tells: "Training ends. The leader saves the last version first.",
      line: ({ job }) => `shoal jobs stop ${S.quoted(job)}` },
    transfer: { kind: "jobs", word: "Transfer", hurts: true, tells: "Another node leads the job from its last saved version on.",
      line: ({ job, node }) => `shoal jobs transfer ${S.quoted(job)}${node ? ` --to ${S.quoted(node)}` : ""}` },
    approve: { kind: "devices", word: "Approve", tells: "The device may take part from now on.",
      line: ({ node }) => `shoal nodes approve ${S.quoted(node)}` },
    drain: { kind: "devices", word: "Drain", hurts: true, tells: "The device gets no work until it is undrained.",
      line: ({ node, reason }) => `shoal nodes drain ${S.quoted(node)}${why(reason)}` },
    undrain: { kind: "devices", word: "Undrain", tells: "The device may take work again.",
      line: ({ node }) => `shoal nodes undrain ${S.quoted(node)}` },
    publish: { kind: "models", word: "Publish", tells: "The newest saved version is served from now on, however good it is. What a rollback held back ends.",
      line: ({ job, reason }) => `shoal model publish ${S.quoted(job)}${why(reason)}` },
    "roll-back": { kind: "models", word: "Serve this version", hurts: true, tells: "Applications get this version again. Nothing is published by itself until an operator publishes.",
      line: ({ job, version, reason }) => `shoal model rollback ${S.quoted(job)} --to ${version}${why(reason)}` },
  }; // prettier-ignore

  function why(reason) {
    return reason ? ` --reason ${S.quoted(reason)}` : "";
  }

  function Dialogue({ act, on, close }) {
    const { word, tells, hurts, line } = ACTS[act];
    const ref = useRef(null);
    const [reason, setReason] = useState("");
    const [typed, setTyped] = useState("");
    const [answer, setAnswer] = useState(null);
    const [busy, setBusy] = useState(false);
    const name = act === "transfer" || !on.node ? on.job : on.node;
    useEffect(() => ref.current.showModal(), []);
    const ready = reason.trim() && (!hurts || typed === name) && !busy;
    const send = async (event) => {
      event.preventDefault();
      if (!ready) return;
      setBusy(true);
      setAnswer(await S.tell("/api/act", { do: act, ...on, reason: reason.trim() }));
      setBusy(false);
    };
    const target = on.version ? `version ${on.version} of ${on.job}` : name;
    return html`
      <dialog ref=${ref} onClose=${close} aria-labelledby="act-title">
        <form onSubmit=${send}>
          <h2 id="act-title">${word}: ${target}</h2>
          <p>${tells}</p>
          ${answer?.done !== undefined
            ? html`<p class="done" role="alert">Done. ${answer.done}</p>`
            : html`
                <label>Why? Devices, events and colleagues will read this.
                  <input name="reason" required maxlength="200" autocomplete="off" value=${reason} onInput=${(event) => setReason(event.currentTarget.value)} />
                </label>
                ${hurts && html`<label><span>Type <code>${name}</code> to confirm.</span>
                  <input name="typed" required autocomplete="off" spellcheck="false" value=${typed} onInput=${(event) => setTyped(event.currentTarget.value)} />
                </label>`}
                ${answer?.denied && html`<p class="denied" role="alert">Refused. ${answer.denied}</p>`}`}
          <p class="dim">The same in a terminal:</p>
          <${S.CommandLine} text=${line({ ...on, reason: reason.trim() })} />
          <div class="buttons">
            <button type="button" onClick=${() => ref.current.close()}>${answer?.done !== undefined ? "Close" : "Cancel"}</button>
            ${answer?.done === undefined && html`<button class="primary ${hurts ? "hurts" : ""}" disabled=${!ready}>${busy ? "Asking …" : word}</button>`}
          </div>
        </form>
      </dialog>`;
  }

  /** A button where the session may act; else nothing. */
  function Act({ act, on, word }) {
    const [open, setOpen] = useState(false);
    if (!S.may(ACTS[act].kind)) return null;
    return html`
      <button type="button" class="act" aria-haspopup="dialog" onClick=${() => setOpen(true)}>${word ?? ACTS[act].word}…</button>
      ${open && html`<${Dialogue} act=${act} on=${on} close=${() => setOpen(false)} />`}`;
  }

  S.Act = Act;
  S.lineOf = (act, on) => ACTS[act].line(on);
})((window.Shoal ??= {}));
