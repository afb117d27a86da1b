package derive

import (
	"encoding/json"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// Instruct carries out an instruction of a Dockerfile: CMD, ENTRYPOINT, ENV, EXPOSE, HEALTHCHECK,
// LABEL, ONBUILD, SHELL, STOPSIGNAL, USER, VOLUME or WORKDIR. InvalidArgument for another one.
func (s Settings) Instruct(line string) error {
	line = strings.TrimSpace(line)
	end := strings.IndexAny(line, " \t=")
	if end < 0 {
		end = len(line)
	}
	name, rest := strings.ToUpper(line[:end]), strings.TrimSpace(strings.TrimPrefix(line[end:], "="))
	if name != "CMD" && name != "ENTRYPOINT" && rest == "" {
		return invalid.Errorf("instruction %q has no value", line)
	}
	if strings.ContainsRune(rest, 0) {
		return invalid.Errorf("instruction %s has a zero byte", name)
	}
	var err error
	switch name {
	case "CMD":
		s.Set("Cmd", s.command(rest))
	case "ENTRYPOINT":
		s.Set("Entrypoint", s.command(rest))
	case "SHELL":
		list, ok := words(rest)
		if !ok || len(list) == 0 {
			return invalid.Errorf("SHELL %q is no JSON list of words", rest)
		}
		s.Set("Shell", list)
	case "ENV":
		var pairs []string
		if pairs, err = assignments(rest, s.list("Env")); err == nil {
			s.Env(pairs)
		}
	case "LABEL":
		var pairs []string
		if pairs, err = assignments(rest, s.list("Env")); err == nil {
			labels := map[string]string{}
			for _, p := range pairs {
				k, v, _ := strings.Cut(p, "=")
				labels[k] = v
			}
			s.Labels(labels)
		}
	case "EXPOSE":
		err = s.expose(strings.Fields(rest))
	case "VOLUME":
		err = s.volumes(rest)
	case "USER":
		s.Set("User", rest)
	case "WORKDIR":
		if !path.IsAbs(rest) {
			rest = path.Join("/", s.text("WorkingDir"), rest)
		}
		s.Set("WorkingDir", path.Clean(rest))
	case "STOPSIGNAL":
		s.Set("StopSignal", rest)
	case "ONBUILD":
		s.Set("OnBuild", append(s.list("OnBuild"), rest))
	case "HEALTHCHECK":
		err = s.healthcheck(rest)
	default:
		return invalid.Errorf("instruction %q is none of CMD, ENTRYPOINT, ENV, EXPOSE, HEALTHCHECK, LABEL, ONBUILD, SHELL, STOPSIGNAL, USER, VOLUME, WORKDIR", name)
	}
	return err
}

// words reads a JSON list of words.
func words(s string) (list []string, ok bool) {
	if !strings.HasPrefix(s, "[") || json.Unmarshal([]byte(s), &list) != nil {
		return nil, false
	}
	return list, true
}

// command is a JSON list of words, or a line for the shell; nil for nothing.
func (s Settings) command(rest string) any {
	if list, ok := words(rest); ok {
		return list
	}
	if rest == "" {
		return nil
	}
	return append(s.shell(), rest)
}

func (s Settings) shell() []string {
	if sh := s.list("Shell"); len(sh) > 0 {
		return sh
	}
	return []string{"/bin/sh", "-c"}
}

// Expose adds ports, PORT[-PORT][/PROTOCOL] each.
func (s Settings) Expose(ports []string) error { return s.expose(ports) }

func (s Settings) expose(ports []string) error {
	if len(ports) == 0 {
		return nil
	}
	all := table[struct{}](s, "ExposedPorts")
	for _, p := range ports {
		numbers, proto, ok := strings.Cut(p, "/")
		if !ok {
			proto = "tcp"
		}
		from, to, ranged := strings.Cut(numbers, "-")
		if !ranged {
			to = from
		}
		a, aerr := strconv.ParseUint(from, 10, 16)
		b, berr := strconv.ParseUint(to, 10, 16)
		if aerr != nil || berr != nil || a == 0 || a > b || !slices.Contains([]string{"tcp", "udp", "sctp"}, strings.ToLower(proto)) {
			return invalid.Errorf("port %q", p)
		}
		for n := a; n <= b; n++ {
			all[strconv.FormatUint(n, 10)+"/"+strings.ToLower(proto)] = struct{}{}
		}
	}
	s.Set("ExposedPorts", all)
	return nil
}

func (s Settings) volumes(rest string) error {
	list, ok := words(rest)
	if !ok {
		list = strings.Fields(rest)
	}
	all := table[struct{}](s, "Volumes")
	for _, v := range list {
		if !path.IsAbs(v) {
			return invalid.Errorf("volume %q is no absolute path", v)
		}
		all[v] = struct{}{}
	}
	s.Set("Volumes", all)
	return nil
}

func (s Settings) healthcheck(rest string) error {
	if strings.EqualFold(rest, "NONE") {
		s.Set("Healthcheck", core.HealthCheck{Test: []string{"NONE"}})
		return nil
	}
	var h core.HealthCheck
	for strings.HasPrefix(rest, "--") {
		option, more, _ := strings.Cut(rest, " ")
		rest = strings.TrimSpace(more)
		name, value, _ := strings.Cut(strings.TrimPrefix(option, "--"), "=")
		var err error
		times := map[string]*time.Duration{"interval": &h.Interval, "timeout": &h.Timeout, "start-period": &h.StartPeriod, "start-interval": &h.StartInterval}
		switch to := times[name]; {
		case to != nil:
			*to, err = time.ParseDuration(value)
		case name == "retries":
			h.Retries, err = strconv.Atoi(value)
		default:
			return invalid.Errorf("HEALTHCHECK has no option --%s", name)
		}
		if err != nil {
			return invalid.Errorf("HEALTHCHECK --%s: %v", name, err)
		}
	}
	kind, line, _ := strings.Cut(rest, " ")
	if line = strings.TrimSpace(line); !strings.EqualFold(kind, "CMD") || line == "" {
		return invalid.Errorf("HEALTHCHECK %q is neither NONE nor CMD with a command", rest)
	}
	if list, ok := words(line); ok {
		h.Test = append([]string{"CMD"}, list...)
	} else {
		h.Test = []string{"CMD-SHELL", line}
	}
	s.Set("Healthcheck", h)
	return nil
}

// assignments reads NAME=value …, with quotes and backslashes as in a Dockerfile, or NAME value.
func assignments(rest string, env []string) ([]string, error) {
	list, err := split(rest, env)
	if err != nil {
		return nil, err
	}
	if len(list) > 0 && !strings.Contains(list[0], "=") {
		name, value, ok := strings.Cut(rest, " ")
		if !ok || strings.ContainsAny(name, "\"'\\") {
			return nil, invalid.Errorf("%q is not NAME=value", rest)
		}
		if len(value) > longestValue {
			return nil, tooLong(rest)
		}
		value = variable.ReplaceAllStringFunc(strings.TrimSpace(value), func(ref string) string { return valueOf(env, strings.Trim(ref, "${}")) })
		if len(value) > longestValue {
			return nil, tooLong(rest)
		}
		return []string{name + "=" + value}, nil
	}
	for _, p := range list {
		if name, _, ok := strings.Cut(p, "="); !ok || name == "" {
			return nil, invalid.Errorf("%q is not NAME=value", p)
		}
	}
	return list, nil
}

// valueOf returns the value of a variable; "" if it is not set.
func valueOf(env []string, name string) string {
	for _, e := range env {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}

// variable matches a reference to a variable, $NAME or ${NAME}.
var (
	variable     = regexp.MustCompile(`\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})`)
	variableHere = regexp.MustCompile("^" + variable.String())
)

// longestValue bounds a value with variables. The kernel takes no longer string in an environment.
const longestValue = 128 << 10

func tooLong(line string) error {
	return invalid.Errorf("%.60q: a value is longer than %d bytes", line, longestValue)
}

// split takes a line apart into words, and puts the values of variables in place of their names, except between single quotes.
func split(line string, env []string) (list []string, err error) {
	var word strings.Builder
	quote, in := rune(0), false
	escaped := false
	for at := 0; at < len(line); {
		r, size := utf8.DecodeRuneInString(line[at:])
		if r == '$' && !escaped && quote != '\'' {
			if ref := variableHere.FindString(line[at:]); ref != "" {
				word.WriteString(valueOf(env, strings.Trim(ref, "${}")))
				if word.Len() > longestValue {
					return nil, tooLong(line)
				}
				at, in = at+len(ref), true
				continue
			}
		}
		at += size
		switch {
		case escaped:
			if quote == '"' && r != '"' && r != '\\' && r != '$' {
				word.WriteByte('\\')
			}
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			escaped, in = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '"' || r == '\''):
			quote, in = r, true
		case quote == 0 && (r == ' ' || r == '\t' || r == '\n'):
			if in {
				list = append(list, word.String())
				word.Reset()
				in = false
			}
		default:
			word.WriteRune(r)
			in = true
		}
	}
	if quote != 0 || escaped {
		return nil, invalid.Errorf("%q: a quote or a backslash has no end", line)
	}
	if in {
		list = append(list, word.String())
	}
	return list, nil
}

// merged returns the variables of both, those of more in place of those of the same name.
func merged(env, more []string) []string {
	at := map[string]int{}
	out := slices.Clone(env)
	for i, e := range out {
		name, _, _ := strings.Cut(e, "=")
		at[name] = i
	}
	for _, e := range more {
		name, _, _ := strings.Cut(e, "=")
		if i, ok := at[name]; ok {
			out[i] = e
			continue
		}
		at[name] = len(out)
		out = append(out, e)
	}
	return out
}
