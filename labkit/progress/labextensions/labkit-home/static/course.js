// The course as the hub knows it: released, due, handed in, place in the queue, marks that have come back. The learner's
// server asks the hub; where there is none, nothing of this is shown.
import { element } from "./element.js";

// between looks
const SECONDS = 30;
const SECONDS_IN_QUEUE = 5; // while a submission is in the queue
const SECONDS_AT_LEAST = 1; // when the page is seen again

export class Course {
  // changed: called with what to read aloud, when something that is shown has changed
  constructor(app, { ServerConnection }, changed) {
    this._settings = app.serviceManager.serverSettings;
    this._request = ServerConnection.makeRequest; // with the token that the server asks for
    this._changed = changed;
    this._notebooks = null; // those that the learner has; null before the first answer
    this._course = null; // what the hub has answered last
    this._shown = "";
    this._asked = -Infinity;
  }

  // the assignment in which the notebook of an exercise is released; undefined if it is not, or if that is not known
  assignment({ notebook }) {
    return this._course?.assignments.find((one) => one.notebooks.some((each) => each.notebook === notebook));
  }

  // whether it is known that nothing is released
  get isEmpty() {
    return this._course?.assignments.length === 0;
  }

  // whether the learner has the notebook of an exercise
  has(exercise) {
    return this._notebooks ? this._notebooks.includes(exercise.notebook) : !exercise.missing;
  }

  // why the learner does not have it; empty if the learner does
  lack(exercise) {
    if (this.has(exercise)) return "";
    return this._course && !this.assignment(exercise) ? "not released" : "not fetched";
  }

  // asks the hub, unless it was asked just now; soon: whether what is shown may have changed
  async look(soon) {
    this._soon ||= soon;
    const inQueue = this._course?.assignments.some((one) => one.place);
    const pause = this._soon ? SECONDS_AT_LEAST : inQueue ? SECONDS_IN_QUEUE : SECONDS;
    if (!this._looking && performance.now() - this._asked > 1000 * pause) await this._look();
  }

  async _look() {
    this._looking = true;
    this._soon = false;
    const answer = await this._ask("labkit/course", {});
    this._looking = false;
    this._asked = performance.now();
    if (!answer) return; // the server is away
    this._away = !answer.course;
    const before = this._course;
    this._course = answer.course ?? before;
    this._notebooks = answer.notebooks;
    const assignments = this._course?.assignments ?? [];
    const shown = JSON.stringify([this._away, this._notebooks, this._course, assignments.map(due)]);
    if (shown === this._shown) return;
    this._shown = shown;
    const known = before?.assignments.map(aloud) ?? [];
    this._changed(before ? assignments.map(aloud).filter((text) => !known.includes(text)).join(" ") : "");
  }

  async _ask(path, init) {
    try {
      const answer = await this._request(`${this._settings.baseUrl}${path}`, init, this._settings);
      return answer.ok ? await answer.json() : null;
    } catch {
      return null;
    }
  }

  // a line for the whole course
  warning() {
    if (!this._away) return "";
    return this._course ? "The hub does not answer now: what you see of the course may be old." : "The hub does not answer.";
  }

  // the line below the heading of a phase
  line(exercises) {
    if (!this._course) return "";
    const released = exercises.filter((one) => this.assignment(one));
    if (!released.length) return element("p", { class: "labkit-course" }, "Not released yet.");
    const one = this.assignment(released[0]);
    const fetched = released.every((each) => this.has(each));
    const parts = [`Released${fetched ? "" : ", not fetched"}, ${due(one)}.`];
    parts.push(one.handed_in ? `Handed in ${moment(one.handed_in)}.` : "Not handed in.");
    parts.push(one.waiting);
    if (one.tries_left !== null) parts.push(`${one.tries_left} ${one.tries_left === 1 ? "try" : "tries"} left today.`);
    const button = fetched ? "" : this.fetchButton(one);
    return element("p", { class: "labkit-course" }, parts.filter(Boolean).join(" "), button);
  }

  // fetches what the learner does not have of an assignment, by nbgrader's part of the server
  fetchButton({ name }) {
    const attributes = { type: "button", class: "jp-mod-styled labkit-fetch", "data-key": `fetch-${name}` };
    const button = element("button", attributes, `Fetch ${name}`);
    const problem = element("span", { role: "alert" });
    button.addEventListener("click", async () => {
      if (button.ariaDisabled === "true") return;
      button.ariaDisabled = "true"; // a disabled one would lose the focus
      problem.replaceChildren();
      const body = JSON.stringify({ course_id: this._course.course, assignment_id: name });
      await this._ask("assignments/fetch", { method: "POST", body }); // the answer does not say whether it has
      await this._look();
      if (!button.isConnected) return; // fetched: the page was written again
      button.ariaDisabled = "false";
      problem.append(` It could not be fetched. Is there a file ${name} in the place of the folder, or is your disk full?`);
    });
    return element("span", {}, " ", button, problem);
  }

  // how many submissions the exercise took others
  others(exercise) {
    const others = this._of(exercise)?.others;
    if (!others) return "";
    const needed = `${others.attempts} ${others.attempts === 1 ? "submission" : "submissions"}`;
    return element("span", { class: "labkit-others" }, `Of ${others.complete} with all marks half needed ${needed} or fewer.`);
  }

  _of(exercise) {
    return this.assignment(exercise)?.notebooks.find((one) => one.notebook === exercise.notebook);
  }

  // marks that have come back, with a link to the feedback. page: address of the course's page
  marks(exercise, page) {
    const marks = this._of(exercise)?.marks;
    if (!marks) return "";
    const attributes = { href: `${page}${marks.feedback}`, target: "_blank", rel: "noopener" };
    attributes["aria-label"] = `Feedback on ${exercise.label}`;
    attributes["data-key"] = `feedback-${exercise.number}`;
    const link = element("a", attributes, "feedback");
    return element("span", { class: "labkit-marks" }, `Marks: ${marks.score} of ${marks.points} · `, link);
  }
}

// what is read aloud when it changes
function aloud({ name, handed_in, waiting, notebooks }) {
  const marks = notebooks.filter((one) => one.marks).map((one) => `${one.notebook}: ${one.marks.score} of ${one.marks.points}.`);
  return [`${name}: ${handed_in ? "handed in" : "released"}.`, waiting, ...marks].filter(Boolean).join(" ");
}

function due({ due, handed_in }) {
  if (!due) return "no due date";
  const late = new Date(due) < new Date() && !handed_in;
  return `${late ? "late: was due" : "due"} ${moment(due)} (${relative(due)})`;
}

const MOMENT = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });

const moment = (iso) => MOMENT.format(new Date(iso));

const UNITS = [
  ["day", 86400],
  ["hour", 3600],
  ["minute", 60],
];

function relative(iso) {
  const seconds = (new Date(iso) - new Date()) / 1000;
  const [unit, length] = UNITS.find(([, each]) => Math.abs(seconds) >= each) ?? UNITS[2];
  return new Intl.RelativeTimeFormat("en").format(Math.trunc(seconds / length), unit);
}
