package docker

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/logs"
)

// timeFormat is RFC 3339 with nine digits of a second, which dockerd prints before lines.
const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

// logs sends the output from the log. With follow it ends with the run of the program, also of a container that is started again.
func (f *Face) logs(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := r.Context()
	stdout, stderr := r.Bool("stdout"), r.Bool("stderr")
	if !stdout && !stderr {
		return invalid.Errorf("Bad parameters: you must choose at least one stream")
	}
	opts, err := logOptions(r)
	if err != nil {
		return err
	}
	c, err := f.findAny(ctx, r.Vars["id"])
	if err != nil {
		return err
	}
	sinks := logs.Whole(c.Config.IO.Sinks)
	switch {
	case len(sinks) == 0:
		return errdefs.ErrNotImplemented.WithMessage("configured logging driver does not support reading")
	case c.Removing:
		return errdefs.ErrFailedPrecondition.WithMessage("can not get logs from container which is dead or marked for removal")
	}
	if opts.Follow = r.Bool("follow") && c.State.Live(); opts.Follow {
		var stop func()
		opts.Ended, stop = engine.Ended(ctx, others{f}.reads(), c.ID)
		defer stop()
	}
	w.Header().Set("Content-Type", r.MediaType(c.Main.TTY))
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	_ = flush()
	out := &dockerhttp.Frames{To: w, Raw: c.Main.TTY, Flush: flush}
	prefix := linePrefix(r, c)
	part := false // the last entry was a part of a line
	err = logs.ReadWhole(ctx, sinks, opts, func(e logs.Entry) error {
		stream := dockerhttp.Stdout
		if e.Stream == "stderr" {
			stream = dockerhttp.Stderr
		}
		if stream == dockerhttp.Stdout && !stdout || stream == dockerhttp.Stderr && !stderr {
			return nil
		}
		var line []byte
		if !part {
			line = prefix(e)
		}
		line = append(line, e.Text...)
		if part = e.Partial; !part {
			line = append(line, '\n')
		}
		return out.Write(stream, line)
	})
	if err != nil && ctx.Err() == nil {
		_ = out.Write(dockerhttp.SystemError, fmt.Appendf(nil, "Error grabbing logs: %s\n", dockerhttp.Text(err)))
	}
	return nil
}

func logOptions(r *dockerhttp.Request) (o logs.Options, err error) {
	if o.Since, err = dockerhttp.Moment("since", r.Get("since")); err != nil {
		return o, err
	}
	if o.Until, err = dockerhttp.Moment("until", r.Get("until")); err != nil {
		return o, err
	}
	if text := r.Get("tail"); text != "" && text != "all" {
		// A negative number, and another text, is all, as in dockerd.
		if n, err := strconv.Atoi(text); err == nil && n >= 0 {
			if o.Tail = n; n == 0 {
				o.Tail = -1 // no earlier output
			}
		}
	}
	return o, nil
}

// linePrefix returns a function for the text before a line: its time and the container's details, as the request wants them.
func linePrefix(r *dockerhttp.Request, c core.Container) func(logs.Entry) []byte {
	details := ""
	if r.Bool("details") {
		details = detailsOf(c) + " "
	}
	stamps := r.Bool("timestamps")
	return func(e logs.Entry) []byte {
		var line []byte
		if stamps {
			line = append(e.At.UTC().AppendFormat(line, timeFormat), ' ')
		}
		return append(line, details...)
	}
}

// detailsOf returns the labels and variables that the log's options name.
func detailsOf(c core.Container) string {
	r, err := asked(c)
	if err != nil {
		return ""
	}
	list := map[string]string{}
	o := r.HostConfig.LogConfig.Config
	for _, name := range strings.Split(o["labels"], ",") {
		if v, ok := c.Labels[name]; ok && name != "" {
			list[name] = v
		}
	}
	for _, name := range strings.Split(o["env"], ",") {
		for _, e := range r.Env {
			if v, ok := strings.CutPrefix(e, name+"="); ok && name != "" {
				list[name] = v
			}
		}
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(list)) {
		parts = append(parts, url.QueryEscape(k)+"="+url.QueryEscape(list[k]))
	}
	return strings.Join(parts, ",")
}
