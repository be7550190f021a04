//! The tables from which every sentence is made.

/// An animal and what is known about it. `size` orders animals from small to large; two of equal size are never compared.
pub(crate) struct Animal {
    pub(crate) name: &'static str,
    pub(crate) home: &'static str,
    pub(crate) food: &'static str,
    pub(crate) sound: &'static str,
    pub(crate) colour: &'static str,
    pub(crate) legs: usize,
    pub(crate) size: u32,
}

const fn animal(
    name: &'static str,
    home: &'static str,
    food: &'static str,
    sound: &'static str,
    colour: &'static str,
    legs: usize,
    size: u32,
) -> Animal {
    Animal { name, home, food, sound, colour, legs, size }
}

/// `sound` is empty for animals that are quiet.
pub(crate) const ANIMALS: &[Animal] = &[
    animal("ant", "in an anthill", "crumbs", "", "black", 6, 1),
    animal("bee", "in a hive", "honey", "buzz", "yellow", 6, 2),
    animal("spider", "in a web", "flies", "", "black", 8, 2),
    animal("frog", "in a pond", "flies", "croak", "green", 4, 5),
    animal("mouse", "in a hole", "cheese", "squeak", "grey", 4, 6),
    animal("robin", "in a garden", "worms", "tweet", "red", 2, 7),
    animal("crab", "on the beach", "fish", "click", "red", 10, 9),
    animal("owl", "in a tree", "mice", "hoot", "brown", 2, 12),
    animal("squirrel", "in a tree", "nuts", "chatter", "red", 4, 11),
    animal("duck", "on a lake", "bread", "quack", "white", 2, 14),
    animal("hen", "on a farm", "corn", "cluck", "brown", 2, 13),
    animal("rabbit", "in a field", "carrots", "", "white", 4, 15),
    animal("cat", "in a house", "fish", "meow", "black", 4, 17),
    animal("fox", "in a forest", "hens", "yip", "orange", 4, 20),
    animal("penguin", "on the ice", "fish", "honk", "black", 2, 22),
    animal("snake", "in a desert", "eggs", "hiss", "green", 0, 16),
    animal("dog", "in a house", "bones", "woof", "brown", 4, 25),
    animal("goat", "on a mountain", "leaves", "bleat", "white", 4, 29),
    animal("sheep", "in a meadow", "grass", "baa", "white", 4, 30),
    animal("monkey", "in a jungle", "bananas", "chatter", "brown", 4, 24),
    animal("wolf", "in a forest", "meat", "howl", "grey", 4, 28),
    animal("pig", "on a farm", "apples", "oink", "pink", 4, 33),
    animal("seal", "in the sea", "fish", "bark", "grey", 0, 36),
    animal("lion", "in the grassland", "meat", "roar", "yellow", 4, 40),
    animal("tiger", "in a jungle", "meat", "growl", "orange", 4, 42),
    animal("donkey", "on a farm", "hay", "bray", "grey", 4, 44),
    animal("horse", "in a stable", "hay", "neigh", "brown", 4, 50),
    animal("cow", "on a farm", "grass", "moo", "brown", 4, 52),
    animal("bear", "in a cave", "honey", "growl", "brown", 4, 48),
    animal("camel", "in a desert", "leaves", "grunt", "brown", 4, 54),
    animal("giraffe", "in the grassland", "leaves", "", "yellow", 4, 60),
    animal("elephant", "in the grassland", "grass", "trumpet", "grey", 4, 70),
    animal("shark", "in the sea", "fish", "", "grey", 0, 65),
    animal("whale", "in the sea", "plankton", "song", "blue", 0, 90),
];

/// Things of one colour. The first word decides between "a" and "an"; plural names begin with "the".
pub(crate) const COLOURS: &[(&str, &str)] = &[
    ("a banana", "yellow"),
    ("a lemon", "yellow"),
    ("the sun", "yellow"),
    ("a strawberry", "red"),
    ("a tomato", "red"),
    ("a cherry", "red"),
    ("a fire engine", "red"),
    ("the grass", "green"),
    ("a leaf", "green"),
    ("a cucumber", "green"),
    ("a pea", "green"),
    ("the sky", "blue"),
    ("the sea", "blue"),
    ("a blueberry", "blue"),
    ("snow", "white"),
    ("milk", "white"),
    ("salt", "white"),
    ("a cloud", "white"),
    ("the night", "black"),
    ("coal", "black"),
    ("an orange", "orange"),
    ("a carrot", "orange"),
    ("a pumpkin", "orange"),
    ("chocolate", "brown"),
    ("wood", "brown"),
    ("the ground", "brown"),
    ("a plum", "purple"),
    ("a grape", "purple"),
    ("a stone", "grey"),
    ("a rain cloud", "grey"),
    ("gold", "yellow"),
    ("a flamingo", "pink"),
];

pub(crate) const OPPOSITES: &[(&str, &str)] = &[
    ("hot", "cold"),
    ("big", "small"),
    ("fast", "slow"),
    ("up", "down"),
    ("left", "right"),
    ("open", "closed"),
    ("light", "dark"),
    ("day", "night"),
    ("happy", "sad"),
    ("wet", "dry"),
    ("old", "young"),
    ("long", "short"),
    ("hard", "soft"),
    ("full", "empty"),
    ("loud", "quiet"),
    ("rich", "poor"),
    ("strong", "weak"),
    ("clean", "dirty"),
    ("early", "late"),
    ("near", "far"),
    ("inside", "outside"),
    ("north", "south"),
    ("east", "west"),
    ("summer", "winter"),
    ("first", "last"),
    ("high", "low"),
    ("thick", "thin"),
    ("sweet", "sour"),
    ("awake", "asleep"),
    ("friend", "enemy"),
];

/// A trade, what it makes or does, and where.
pub(crate) const TRADES: &[(&str, &str, &str)] = &[
    ("baker", "bakes bread", "in a bakery"),
    ("farmer", "grows corn", "on a farm"),
    ("teacher", "teaches children", "in a school"),
    ("doctor", "heals people", "in a hospital"),
    ("painter", "paints pictures", "in a studio"),
    ("fisherman", "catches fish", "on a boat"),
    ("cook", "makes soup", "in a kitchen"),
    ("tailor", "sews coats", "in a workshop"),
    ("smith", "makes horseshoes", "in a forge"),
    ("gardener", "plants flowers", "in a garden"),
    ("pilot", "flies a plane", "at an airport"),
    ("librarian", "lends books", "in a library"),
    ("carpenter", "builds tables", "in a workshop"),
    ("miner", "digs for coal", "in a mine"),
    ("singer", "sings songs", "on a stage"),
    ("postman", "brings letters", "in a town"),
];

pub(crate) const DAYS: &[&str] =
    &["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

pub(crate) const MONTHS: &[&str] = &[
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

pub(crate) const NAMES: &[&str] = &[
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jack", "Kate", "Leo", "Mia",
    "Noah", "Olive", "Paul", "Rosa", "Sam", "Tina", "Will",
];

pub(crate) const PLACES: &[&str] = &[
    "the market",
    "the park",
    "the beach",
    "the forest",
    "the school",
    "the library",
    "the river",
    "the farm",
    "the old town",
    "the hill",
    "the lake",
    "the garden",
];

/// Things that are bought, found and given away: singular and plural.
pub(crate) const ITEMS: &[(&str, &str)] = &[
    ("apple", "apples"),
    ("book", "books"),
    ("flower", "flowers"),
    ("shell", "shells"),
    ("pear", "pears"),
    ("egg", "eggs"),
    ("stone", "stones"),
    ("cake", "cakes"),
    ("ball", "balls"),
    ("candle", "candles"),
];

pub(crate) const TINTS: &[&str] =
    &["red", "blue", "green", "yellow", "white", "brown", "small", "big", "old", "new"];

pub(crate) const WEATHER: &[&str] = &[
    "The sun was shining",
    "It was raining",
    "It was a windy day",
    "It was snowing",
    "The sky was grey",
    "It was very hot",
    "It was cold",
];

/// Numbers in words, up to ninety-nine.
pub(crate) fn number(n: usize) -> String {
    const SMALL: [&str; 20] = [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ];
    const TENS: [&str; 10] =
        ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
    match (n / 10, n % 10) {
        (0 | 1, _) => SMALL[n].to_owned(),
        (tens, 0) => TENS[tens].to_owned(),
        (tens, ones) => format!("{}-{}", TENS[tens], SMALL[ones]),
    }
}

/// The noun with "a" or "an".
pub(crate) fn a(noun: &str) -> String {
    let article = if noun.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {noun}")
}

/// The text with a capital first letter.
pub(crate) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
