package core

import "strings"

// Validity is checked without package regexp: compiled patterns in package variables were a sixth
// of an idle agent's heap.

// IsName reports whether s is a name of at most most characters: an ASCII letter or digit, followed
// by these and the bytes of also.
func IsName(s, also string, most int) bool {
	if s == "" || len(s) > most {
		return false
	}
	for i := range len(s) {
		if !isAlphanumeric(s[i]) && (i == 0 || strings.IndexByte(also, s[i]) < 0) {
			return false
		}
	}
	return true
}

// IsHex reports whether s has only lower-case hexadecimal digits.
func IsHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
}
