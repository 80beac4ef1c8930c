//! Reads HTML as a browser does, as far as it decides what is an element, what is an
//! attribute and what is text.

use std::collections::BTreeSet;

/// An element with its attributes.
#[derive(Debug)]
pub struct PageElement {
    pub name: String,
    pub attributes: Vec<(String, String)>,
}

/// A page, taken apart.
#[derive(Debug, Default)]
pub struct ParsedPage {
    pub elements: Vec<PageElement>,
    /// Number of comments.
    pub comments: usize,
    /// All text outside of tags, decoded.
    pub text: String,
}

impl ParsedPage {
    /// Takes a page apart.
    pub fn of(html: &str) -> Self {
        let mut page = Self::default();
        let mut rest = html;
        while let Some(at) = rest.find('<') {
            page.text.push_str(&decoded(&rest[..at]));
            rest = page.read_markup(&rest[at..]);
        }
        page.text.push_str(&decoded(rest));
        page
    }

    /// Reads what begins with `<`; returns what follows it.
    fn read_markup<'a>(&mut self, html: &'a str) -> &'a str {
        let after = &html[1..];
        let next = after.chars().next().unwrap_or(' ');
        if next.is_ascii_alphabetic() {
            return self.read_element(after);
        }
        let is_end = next == '/' && after[1..].starts_with(|c: char| c.is_ascii_alphabetic());
        let is_doctype = after.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("!doctype"));
        if let Some(comment) = after.strip_prefix("!--") {
            self.comments += 1;
            return comment.split_once("-->").map_or("", |(_, rest)| rest);
        }
        if is_end || is_doctype || next == '!' || next == '?' || next == '/' {
            self.comments += usize::from(!is_end && !is_doctype);
            return after.split_once('>').map_or("", |(_, rest)| rest);
        }
        self.text.push('<');
        after
    }

    fn read_element<'a>(&mut self, html: &'a str) -> &'a str {
        let name_end = html.find(|c: char| c.is_ascii_whitespace() || c == '/' || c == '>').unwrap_or(html.len());
        let name = html[..name_end].to_ascii_lowercase();
        let (attributes, mut rest) = read_attributes(&html[name_end..]);
        // The content of these is text up to their own end.
        if ["script", "style", "title", "textarea"].contains(&name.as_str()) {
            let end = rest.to_ascii_lowercase().find(&format!("</{name}")).unwrap_or(rest.len());
            self.text.push_str(&decoded(&rest[..end]));
            if name == "script" || name == "style" {
                assert!(rest[..end].trim().is_empty(), "<{name}> has content: {}", &rest[..end]);
            }
            rest = &rest[end..];
        }
        self.elements.push(PageElement { name, attributes });
        rest
    }

    /// Returns every element and every attribute of an element that the page has.
    pub fn shape(&self) -> BTreeSet<String> {
        let attributes = |element: &PageElement| {
            let name = element.name.clone();
            element.attributes.iter().map(move |(attribute, _)| format!("{name}[{attribute}]")).collect::<Vec<_>>()
        };
        self.elements.iter().flat_map(|element| attributes(element).into_iter().chain([element.name.clone()])).collect()
    }

    /// Returns every address that something leads to, or is loaded from.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        let attributes = self.elements.iter().flat_map(|element| &element.attributes);
        let leading = ["href", "src", "action", "formaction", "data-tail", "xlink:href", "srcset", "poster"];
        attributes.filter(move |(name, _)| leading.contains(&name.as_str())).map(|(_, value)| value.as_str())
    }
}

/// Reads the attributes of a tag; returns also what follows the tag.
fn read_attributes(html: &str) -> (Vec<(String, String)>, &str) {
    let mut attributes = Vec::new();
    let mut rest = html;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '/');
        if rest.is_empty() || rest.starts_with('>') {
            return (attributes, rest.get(1..).unwrap_or_default());
        }
        let ends_name = |c: char| c.is_ascii_whitespace() || c == '/' || c == '>' || c == '=';
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let name_end = rest[first..].find(ends_name).map_or(rest.len(), |end| end + first);
        let name = rest[..name_end].to_ascii_lowercase();
        rest = rest[name_end..].trim_start_matches(|c: char| c.is_ascii_whitespace());
        let mut value = "";
        if let Some(after) = rest.strip_prefix('=') {
            let after = after.trim_start_matches(|c: char| c.is_ascii_whitespace());
            let quote = after.chars().next().filter(|c| *c == '"' || *c == '\'');
            (value, rest) = match quote {
                Some(quote) => after[1..].split_once(quote).unwrap_or((&after[1..], "")),
                None => {
                    after.split_at(after.find(|c: char| c.is_ascii_whitespace() || c == '>').unwrap_or(after.len()))
                }
            };
        }
        attributes.push((name, decoded(value)));
    }
}

/// Replaces character references by their characters.
fn decoded(html: &str) -> String {
    let mut text = String::with_capacity(html.len());
    let mut rest = html;
    while let Some(at) = rest.find('&') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let known = rest.split_once(';').and_then(|(name, after)| Some((character(&name[1..])?, after)));
        match known {
            Some((character, after)) => {
                text.push(character);
                rest = after;
            }
            None => {
                text.push('&');
                rest = &rest[1..];
            }
        }
    }
    text.push_str(rest);
    text
}

fn character(name: &str) -> Option<char> {
    match name {
        "lt" => Some('<'),
        "gt" => Some('>'),
        "amp" => Some('&'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        "nbsp" => Some('\u{a0}'),
        _ => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(code)
        }
    }
}
