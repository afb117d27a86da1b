package wire

// Escape makes a file name of any text: letters, digits, dot, dash and underscore
// stay, other bytes become %XX. A long name is cut and gets a hash.
func Escape(text string) string {
	const hex = "0123456789ABCDEF"
	out := make([]byte, 0, len(text)+8)
	hash := uint64(14695981039346656037)
	for i := range len(text) {
		c := text[i]
		hash = (hash ^ uint64(c)) * 1099511628211
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' && i > 0
		if plain {
			out = append(out, c)
		} else {
			out = append(out, '%', hex[c>>4], hex[c&15])
		}
	}
	const most = 160
	if len(out) > most {
		out = append(out[:most], '~')
		for i := range 16 {
			out = append(out, hex[hash>>(60-4*i)&15])
		}
	}
	if len(out) == 0 {
		return "%"
	}
	return string(out)
}

// Key returns a process's path below io/. No other process's name can collide with the
// main one's.
func Key(ref Ref) string {
	name := "main"
	if ref.Process != "" {
		name = "exec-" + Escape(ref.Process)
	}
	return Escape(ref.Container) + "/" + name
}

// RecordFile returns the name, below exits/, of the exit record of the process with
// that key. The plus sign that it contains does not occur in a key's parts.
func RecordFile(key string) string {
	b := []byte(key)
	for i := range b {
		if b[i] == '/' {
			b[i] = '+'
		}
	}
	return string(b)
}
