// Package ui drives the web page of a node in a browser: Debian's headless Chromium, by puppeteer-core and axe-core of browser/.
package ui
