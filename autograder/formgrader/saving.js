// What could not be saved: the reason, beside what was typed. nbgrader's own pages stay at "Saving...".
{
    const { listenTo } = Backbone.View.prototype;

    // whoever shows that a request began hears of its failure
    Backbone.View.prototype.listenTo = function (model, event, ...rest) {
        if (event === "request") {
            listenTo.call(this, model, "request", () => clear(this));
            listenTo.call(this, model, "error", (_, answer) => show(this, reason(answer)));
        }
        return listenTo.call(this, model, event, ...rest);
    };

    const reason = (answer) =>
        answer.responseJSON?.message ??
        (answer.status ? `${answer.status} ${answer.statusText}` : "Jupyter's server does not answer: does it still run?");

    const note = (text) => $("<p/>").addClass("alert alert-danger not-saved").attr("role", "alert").text(`Not saved: ${text}`);

    const clear = (view) => {
        view.$(".not-saved").remove();
        view.$modal?.find(".not-saved").remove();
    };

    const show = (view, text) => {
        clear(view);
        if (view.openModal) {
            inDialog(view, text);
        } else if (view.$glyph) {
            view.$glyph.hide();
            view.$el.find(".panel-heading").first().append(note(text)); // a mark or a comment
        }
    };

    // nbgrader closes the dialog of a new assignment or learner before the server has answered: another is opened
    const inDialog = (view, text) => {
        if (!view.$modal?.closest("body").length) {
            view.openModal();
        }
        view.$modal_save.text("Save");
        const body = view.$modal.find(".modal-body").prepend(note(text));
        view.$modal.off(".refused").on("hidden.bs.modal.refused", () => {
            if (body.find(".not-saved").length) {
                asSaved(view);
            }
        });
    };

    // given up: the table shows what the gradebook has
    const asSaved = (view) =>
        $.getJSON(_.result(view.model, "url"))
            .done((saved) => view.model.set(saved))
            .fail((answer) => {
                if (answer.status === 404) {
                    view.$el.closest("table").DataTable().row(view.$el).remove().draw();
                }
            });
}
