//! The little XML that EC2 answers with: elements and text. Attributes, comments and declarations are passed over.

use std::borrow::Cow;

/// Elements within elements that are followed.
const DEPTH: usize = 32;

/// One element.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    name: String,
    text: String,
    children: Vec<Self>,
}

impl Node {
    /// The root of a document.
    pub(super) fn read(text: &str) -> Result<Self, &'static str> {
        let mut open: Vec<Self> = vec![Self::default()];
        let mut rest = text;
        while let Some(start) = rest.find('<') {
            let (before, tail) = rest.split_at(start);
            let end = tail.find('>').ok_or("a tag has no end")?;
            let tag = &tail[1..end];
            rest = &tail[end + 1..];
            if let Some(node) = open.last_mut() {
                node.text.push_str(&unescaped(before.trim()));
            }
            if tag.starts_with(['?', '!']) {
                continue;
            }
            if let Some(name) = tag.strip_prefix('/') {
                let node = open.pop().ok_or("more ends than beginnings")?;
                if node.name != name.trim() {
                    return Err("an element ends as another");
                }
                let parent = open.last_mut().ok_or("more ends than beginnings")?;
                parent.children.push(node);
                continue;
            }
            let alone = tag.ends_with('/');
            let name = tag.trim_end_matches('/').split_whitespace().next();
            let node = Self {
                name: name.ok_or("a tag has no name")?.to_owned(),
                ..Self::default()
            };
            if alone {
                let parent = open.last_mut().ok_or("more ends than beginnings")?;
                parent.children.push(node);
            } else if open.len() > DEPTH {
                return Err("elements are too deep");
            } else {
                open.push(node);
            }
        }
        let root = open.pop().filter(|_| open.is_empty());
        let root = root.ok_or("an element has no end")?;
        root.children
            .into_iter()
            .next()
            .ok_or("there is no element")
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    /// The text at a path such as `instanceState/name`; none where it is empty.
    pub(super) fn at(&self, path: &str) -> Option<&str> {
        let mut node = self;
        for name in path.split('/') {
            node = node.child(name)?;
        }
        (!node.text.is_empty()).then_some(node.text.as_str())
    }

    /// The items of a list at a path.
    pub(super) fn items(&self, path: &str) -> &[Self] {
        let mut node = Some(self);
        for name in path.split('/') {
            node = node.and_then(|node| node.child(name));
        }
        node.map_or(&[], |node| &node.children)
    }
}

fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return text.into();
    }
    let text = text
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"");
    text.replace("&apos;", "'").replace("&amp;", "&").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_texts_are_found() {
        let text = "<?xml version=\"1.0\"?>\n<A xmlns=\"x\"><s><item><n>a &amp; b</n></item><item/></s></A>";
        let root = Node::read(text).unwrap();
        assert_eq!((root.name(), root.items("s").len()), ("A", 2));
        assert_eq!(root.items("s")[0].at("n"), Some("a & b"));
        assert_eq!(root.at("s/none"), None);
    }

    #[test]
    fn what_is_no_document_is_told() {
        for text in [
            "",
            "hello",
            "<a>",
            "<a></b>",
            "</a>",
            "<a",
            "<>",
            &"<a>".repeat(99),
        ] {
            assert!(Node::read(text).is_err(), "{text}");
        }
    }
}
